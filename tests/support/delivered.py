"""Delivering a batch by hand to a destination that answers later, one call after another."""

from typing import Any

from conduit_py import sdk
from conduit_py.batch import Batch


def delivered(destination: sdk.DestinationConnector[Any], batch: Batch) -> dict[int, str]:
    """Write a batch and wait until all of it is answered for: what was refused, at once or later, by index."""
    refused: dict[int, str] = {**(destination.write(batch) or {})}  # type: ignore[dict-item]
    waiting = {message: index for index, message in enumerate(batch.ids) if index not in refused}
    while waiting:
        for answer in destination.answers():  # type: ignore[union-attr]
            if isinstance(answer, Batch):
                assert [waiting.pop(message) for message in answer.ids if message in waiting], "some of it was awaited"
                continue
            index = waiting.pop(answer.message)
            if answer.refused is not None:
                refused[index] = answer.refused
    return refused

"""Lives of a destination whose tasks stage: runs, attempts, zombies, commits and deaths in any order."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from builders import batch_of

from conduit_py.sdk import PartId


def live_and_die(
    rng: random.Random,
    begin: Callable[[int, Sequence[bytes]], Any],
    numbers: Callable[[], list[int]],
    clear: Callable[[], object],
) -> list[int]:
    """Run some lives and return the numbers that were committed, in order. At each step a reader finds those.

    `begin` opens a driver under a fence, with the intents of the last commit. `clear` is the command, which may run at
    any moment, for what is as old as one likes.
    """
    committed: list[int] = []
    intents: list[bytes] = []
    zombies: list[Any] = []

    def look_around() -> None:
        if rng.random() < 0.3:
            clear()

    for fence in range(1, 5):
        live = begin(fence, intents)
        assert numbers() == committed
        grant = live.grant()
        for part in range(rng.randrange(5)):
            new = [len(committed), len(committed) + 1]
            attempts = [_attempt(live, grant, part, new) for _ in range(rng.randrange(1, 4))]
            manifests = [each.prepared() for each in attempts]
            if rng.random() < 0.5:
                zombies.append(_attempt(live, grant, part, new))
            look_around()
            live.take([rng.choice(manifests)])
            if zombies and rng.random() < 0.5:
                zombies.pop(0).prepared()
            look_around()
            intent = live.stage()
            assert intent is not None
            if rng.random() < 0.2:
                break  # it died before its commit
            committed += new
            intents = [intent]
            look_around()
            if rng.random() < 0.2:
                break  # or before it was applied
            live.apply(intent)
            assert numbers() == committed
        if rng.random() < 0.5:
            live.teardown()
        look_around()
    begin(9, intents)
    return committed


def _attempt(live: Any, grant: bytes, part: int, numbers: Sequence[int]) -> Any:
    task = live.fresh()
    task.open_part(grant, PartId(0, part))
    assert not task.prepare(batch_of(*({"n": number} for number in numbers)))
    return task

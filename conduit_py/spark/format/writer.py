"""Writer and StreamWriter: a DataFrame, or the batches of a stream, into a destination."""

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import trio
from pyspark.sql import datasource, types

from conduit_py import sdk
from conduit_py.errors import Fenced, Problem
from conduit_py.sdk.transactional import TransactionalDestination
from conduit_py.spark.format.border import explained
from conduit_py.spark.format.parcel import Parcel
from conduit_py.spark.format.publish import publish_batch, publish_once
from conduit_py.spark.format.settings import WriteSettings, invalid, write_settings
from conduit_py.spark.format.task import Task, stage_of


class Writer(datasource.DataSourceArrowWriter):
    """All rows or none, where the destination can; else every task writes its own."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        _append_only(overwrite, 'mode("append")')
        self._options = dict(options)
        self._job = uuid.uuid4().hex
        self._task = Task(options, schema, self._job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        return self._task(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        with explained():
            settings, destination = write_settings(self._options)
            parcels = _parcels(messages)
            if self._task.publishes and any(parcel.rows for parcel in parcels):
                assert isinstance(destination, sdk.StagedDestination)
                try:
                    trio.run(publish_once, destination, settings.name, parcels)
                except Fenced as fenced:
                    fenced.suggestion = "write one after the other, or give each write a `name` of its own"
                    raise
        self._clear(settings)

    def abort(self, messages: Sequence[Any]) -> None:
        self._clear(write_settings(self._options)[0])

    def _clear(self, settings: WriteSettings) -> None:
        if settings.stage is not None:
            shutil.rmtree(stage_of(settings.stage, "", "", self._job), ignore_errors=True)


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """Each batch once, where the destination can; else every task writes its own, again if the batch is run again."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        _append_only(overwrite, 'outputMode("append")')
        self._options = dict(options)
        self._task = Task(options, schema, "")
        settings, destination = write_settings(options)
        self._state = ""
        if self._task.publishes and not isinstance(destination, TransactionalDestination):
            self._state = _state(settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        return self._task(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        parcels = _parcels(messages)
        if not self._task.publishes or not any(parcel.rows for parcel in parcels):
            return
        with explained():
            settings, destination = write_settings(self._options)
            assert isinstance(destination, sdk.StagedDestination)
            owner = f"spark-{parcels[0].query}"
            trio.run(publish_batch, destination, owner, batchId, self._state, parcels)
        self._clear(settings, parcels, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._clear(write_settings(self._options)[0], _parcels(messages), batchId)

    def _clear(self, settings: WriteSettings, parcels: Sequence[Parcel], batch: int) -> None:
        """Remove what was staged for this batch and, by attempts that came to nothing, for earlier ones."""
        if settings.stage is None or not parcels:
            return
        for folder in (settings.stage / parcels[0].query).glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= batch:
                shutil.rmtree(folder, ignore_errors=True)


def _append_only(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise invalid(Problem("mode", "destinations are appended to, they cannot be overwritten", f"use {instead}"))


def _parcels(messages: Sequence[Any]) -> list[Parcel]:
    """In the order of the partitions. A task that failed has none."""
    return sorted((each for each in messages if isinstance(each, Parcel)), key=lambda parcel: parcel.partition)


def _state(settings: WriteSettings) -> str:
    """Where to remember what is published: where the user says, or in the folder of Spark's checkpoint."""
    if settings.state is not None:
        return settings.state
    said = settings.checkpointlocation or ""
    parts = urlsplit(said)
    folder = Path(parts.path if parts.scheme == "file" else said)
    # Spark has written this file by now, unless it means another file system by the same path.
    if said and (folder / "metadata").exists():
        return str(folder / "conduit")
    what = f"{settings.connector!r} needs a place to remember which batches are published"
    hint = 'a folder, with option("state", …), that is there when the query starts again'
    if not said:
        hint = f'give the query a checkpoint on this machine with option("checkpointLocation", …), or {hint}'
    raise invalid(Problem("state", what, hint))

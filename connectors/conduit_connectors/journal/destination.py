"""The journal destination: appends records to a journal, in transactions if the pipeline is exactly-once."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Required, TypedDict, Unpack

from pydantic import Field

from conduit_connectors.probe_path import probe_writable
from conduit_py import sdk
from conduit_py.journal import SEGMENT_SIZE, FileLog, MessageUuid, Publisher, WriterClaim, encode_body
from conduit_py.sdk import AckMode, Batch, ConduitError, Record, RecordRefused


class DestinationOptions(sdk.Options):
    """Which journal to write to."""

    path: Path = Field(description="the directory of the journal; it and its folders are created when missing")
    sync: Literal["batch", "never"] = Field(
        "batch", description='"never" does not sync, so a power failure may lose records'
    )
    segment_size: int = Field(SEGMENT_SIZE, gt=0, description="bytes after which another file is begun")


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    sync: Literal["batch", "never"]
    segment_size: int


class Destination(sdk.StagedDestination[DestinationOptions]):
    """Appends records to a journal, from which the journal source reads them. Staged.

    In an exactly-once pipeline records are messages of a transaction: durable before the pipeline commits, visible
    to readers of committed messages after that, once. If the pipeline did not commit, they never see them. The
    journal refuses a run that a newer run of the same pipeline has replaced. In any other pipeline readers see
    records at once, and after a crash some of them twice: at-least-once.

    Several pipelines may write to one journal; within a pipeline each destination needs one of its own. Every
    Python value of a record arrives as it was.
    """

    acks = AckMode.FLUSH
    # A write goes to the page cache. Where that is slow, the runtime moves it to a thread; syncs always run in one.
    blocking = None

    _log: FileLog | None = None
    _claim: WriterClaim | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at(str(self.options.path))]

    def probe(self) -> str:
        return probe_writable(self.options.path)

    def open(self) -> None:
        options = self.options
        self._log = FileLog(options.path, sync=options.sync, segment_size=options.segment_size)
        self._publisher = Publisher()

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        log = self._opened
        self._claim = WriterClaim(log, owner, fence, self._publisher)
        for intent in intents:
            self.apply(intent)
        self._claim.discard_former()
        log.barrier()

    def write(self, batch: Batch) -> dict[int, str] | None:
        bodies, refused = _encode(batch.records)
        if bodies:
            log = self._opened
            if self._claim is None:
                log.append(bodies, id=self._publisher.outside_transaction(len(bodies)))
            else:
                id = self._publisher.in_transaction(log.name, len(bodies))
                log.append(bodies, id=id, check=self._claim.check)
        return refused or None

    def flush(self) -> None:
        self._opened.barrier()

    def stage(self) -> bytes | None:
        # Also without records: the last ACK must be durable before the commit that drops its intent.
        self._opened.barrier()
        intents = self._publisher.ack_intents()
        return intents[0].id.to_bytes() if intents else None

    def apply(self, intent: bytes) -> None:
        assert self._claim is not None, "an intent is applied under a claim"
        # Not synced here: until the next commit the intent makes it durable, and readers sync
        # what they return. That saves an fsync for each transaction.
        self._opened.append([b""], id=MessageUuid.from_bytes(intent), check=self._claim.check)

    def teardown(self) -> None:
        if self._log is not None:
            # The last ACK, in case the pipeline is never started again. If it fails, the next start repeats it.
            with suppress(ConduitError):
                self._log.barrier()
            self._log.close()
            self._log = None

    @property
    def _opened(self) -> FileLog:
        assert self._log is not None, "opened"
        return self._log


def _encode(records: Sequence[Record]) -> tuple[list[bytes], dict[int, str]]:
    try:
        return [encode_body(record) for record in records], {}
    except RecordRefused:
        return _encode_each(records)


def _encode_each(records: Sequence[Record]) -> tuple[list[bytes], dict[int, str]]:
    bodies: list[bytes] = []
    refused: dict[int, str] = {}
    for index, record in enumerate(records):
        try:
            bodies.append(encode_body(record))
        except RecordRefused as reason:
            refused[index] = reason.message
    return bodies, refused

"""DatasetDestination: the base of destinations that write datasets of files, which become visible whole."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from pydantic import Field

from conduit_connectors.objects.dataset_writer import DatasetWriter
from conduit_connectors.policy_options import PolicyOptions
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError, PartId, PieceRefused, StageCleared


class DatasetOptions(PolicyOptions):
    """The options of all destinations of datasets."""

    rows_max: int = Field(default=1_000_000, ge=1, description="after how many rows a file is complete")
    size_max: int = Field(default=256 * 1024 * 1024, ge=1, description="after about how many bytes a file is complete")
    seconds_max: float = Field(
        default=10.0, gt=0, description="how long rows wait for more of their file, outside exactly-once pipelines"
    )


OptionsT = TypeVar("OptionsT", bound=DatasetOptions)


def why_columns_stay_here(columns: object, policy: PolicyOptions) -> str | None:
    """Return why only one writer can know the columns of a table; None if they are declared and stay the same."""
    if columns is None:
        return "its columns are those of the first records: declare `columns`"
    if policy.changes_columns:
        return "records may change its columns: leave out on_new_field and on_type"
    return None


class DatasetDestination(sdk.ManyWriterDestination[OptionsT]):
    """A staged destination whose files a DatasetWriter writes. A connector says where, and in which format.

    On Spark tasks write files too, and the driver makes them visible.
    """

    acks: ClassVar[AckMode] = AckMode.FLUSH
    takes = dict

    _writer: DatasetWriter | None = None

    @abstractmethod
    def make_writer(self) -> DatasetWriter: ...

    @property
    def flush_seconds(self) -> float:
        return self.options.seconds_max

    @property
    def flush_records(self) -> int:
        return self.options.rows_max

    def open(self) -> None:
        self._writer = self.make_writer()
        self._writer.open()
        self.drift_count = self._writer.ignored.drift

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        assert self._writer is not None
        self._writer.begin(owner, fence, intents)

    def write(self, batch: Batch) -> dict[int, str]:
        assert self._writer is not None
        return self._writer.write(batch)

    def flush(self) -> None:
        assert self._writer is not None
        self._writer.flush()

    def stage(self) -> bytes | None:
        assert self._writer is not None
        return self._writer.stage()

    def apply(self, intent: bytes) -> None:
        assert self._writer is not None
        self._writer.apply(intent)

    def grant(self) -> bytes:
        assert self._writer is not None
        return self._writer.grant()

    def open_part(self, grant: bytes, part: PartId) -> None:
        try:
            self._writer = self.make_writer()
            self._writer.open_part(grant, part)
        except FatalError as error:
            # A library that is not installed here, or no access: the driver has opened the same place.
            raise PieceRefused(error.message, suggestion=error.suggestion) from error

    def prepare(self, batch: Batch) -> dict[int, str]:
        assert self._writer is not None
        return self._writer.write(batch)

    def prepared(self) -> bytes:
        assert self._writer is not None
        return self._writer.stage_part()

    def discard_part(self) -> None:
        self.teardown()

    def clear_staged(self, age_seconds: float, owner: str | None) -> StageCleared:
        writer = self.make_writer()
        try:
            return writer.clear_staged(age_seconds, owner)
        finally:
            writer.close()

    def take(self, pieces: Sequence[bytes]) -> None:
        assert self._writer is not None
        self._writer.take(pieces)

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

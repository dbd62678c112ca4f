"""The singer source: runs a tap, and goes on from its STATE."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Required, TypedDict, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.singer.catalog import parse_catalog, select_streams
from conduit_connectors.singer.messages import MessageParser
from conduit_connectors.singer.tap_process import TapProcess
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, Fetched, NothingYet, Options

_CATALOG_SIZE_MAX = 64 * 1024 * 1024


class SourceOptions(Options):
    """Which tap, with which config, and which of its streams."""

    command: list[str] = Field(
        min_length=1, description="the command of the tap, such as `[uvx, --from, tap-jsonl, tap-jsonl]`"
    )
    config: dict[str, Any] = Field(default={}, description="the config of the tap, without its secrets")
    secret_config: dict[str, SecretStr] = Field(default={}, description="what of the config is secret")
    select: list[str] = Field(
        default=["*"], description="the streams to read, as patterns of their names; `!` before one leaves streams out"
    )
    metadata: dict[str, dict[str, Any]] = Field(
        default={}, description="metadata of streams, by pattern, such as `replication-method` and `replication-key`"
    )
    discover: bool = Field(default=True, description="ask the tap for its catalog, to select streams")
    catalog: dict[str, Any] | None = Field(default=None, description="the catalog, in place of asking the tap")
    catalog_argument: str = Field(
        default="--catalog", description="how the tap takes its catalog; old ones have `--properties`"
    )
    hard_delete: bool = Field(default=False, description="a row with `_sdc_deleted_at` is a delete")
    line_size_max: int = Field(default=64 * 1024 * 1024, ge=1, description="the most bytes of a message")


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    command: Required[list[str]]
    config: dict[str, Any]
    secret_config: Mapping[str, str | SecretStr]
    select: list[str]
    metadata: dict[str, dict[str, Any]]
    discover: bool
    catalog: dict[str, Any] | None
    catalog_argument: str
    hard_delete: bool
    line_size_max: int


class Source(sdk.CheckpointedSource[SourceOptions]):
    """The records of a Singer tap, which runs as a process with an environment of its own.

    A position has the last STATE of the tap and the number of records since. A tap that gives the same records in the
    same order from a STATE is read exactly: at-least-once, exactly-once in an exactly-once pipeline. One that does not
    repeats records, and never skips one. The source ends with the tap; a `schedule` runs it again from its last STATE.
    """

    inclusive: ClassVar[bool] = True
    # A tap may write times of its own run into its STATE, and that is in our positions.
    repeatable: ClassVar[bool] = False

    _tap: TapProcess | None = None
    _catalog: dict[str, Any] | None = None
    _wake: tuple[int, int] | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "a tap is one process, which writes its records in one order"

    @property
    def gives(self) -> Any:
        # A line that is no message, or a delete.
        return dict[str, Any] | bytes | None

    def probe(self) -> str:
        command = self.options.command[0]
        if shutil.which(command) is None:
            raise FatalError(f"there is no command {command!r}", suggestion="install the tap, or give its whole path")
        if not self.options.discover or self.options.catalog is not None:
            return f"{command} is there"
        self._wake = os.pipe()
        try:
            streams = select_streams(self._discover(), self.options.select, {})["streams"]
        finally:
            self.teardown()
        return f"{sum(each['selected'] for each in streams)} of {len(streams)} streams are selected"

    def open(self, position: bytes | None) -> None:
        self._wake = os.pipe()
        super().open(position)

    def resume(self, checkpoint: Any) -> None:
        self._end_tap()
        if self._catalog is None:
            self._catalog = self._select()
        files = {} if self._catalog is None else {self.options.catalog_argument: self._catalog}
        if checkpoint is not None:
            files["--state"] = without_bare_mark(checkpoint)
        self._messages = MessageParser(hard_delete=self.options.hard_delete)
        self._tap = self._run_tap((), files)

    def fetch(self, n: int) -> Fetched:
        assert self._tap is not None, "opened"
        while not (items := self._messages.parse(self._tap.take(n))):
            pass
        return items

    def stop(self) -> None:
        if self._wake is not None:
            os.write(self._wake[1], b"!")

    def teardown(self) -> None:
        self._end_tap()
        if self._wake is not None:
            wake, self._wake = self._wake, None
            for fd in wake:
                os.close(fd)

    def _end_tap(self) -> None:
        if self._tap is not None:
            tap, self._tap = self._tap, None
            tap.close()

    def _select(self) -> dict[str, Any] | None:
        catalog = self.options.catalog
        if catalog is None and self.options.discover:
            catalog = self._discover()
        return None if catalog is None else select_streams(catalog, self.options.select, self.options.metadata)

    def _discover(self) -> dict[str, Any]:
        self._tap = self._run_tap(("--discover",), {})
        printed = bytearray()
        try:
            while True:
                try:
                    printed += b"".join(self._tap.take(1000).texts)
                except NothingYet:
                    continue
                if len(printed) > _CATALOG_SIZE_MAX:
                    raise FatalError("the catalog of the tap is too large", suggestion="give it as `catalog`")
        except EndOfSource:
            return parse_catalog(bytes(printed), os.path.basename(self.options.command[-1]))
        finally:
            self._end_tap()

    def _run_tap(self, arguments: Sequence[str], files: Mapping[str, Any]) -> TapProcess:
        assert self._wake is not None, "opened"
        secrets = {name: each.get_secret_value() for name, each in self.options.secret_config.items()}
        config = {"--config": {**self.options.config, **secrets}}
        return TapProcess(
            self.options.command,
            arguments,
            {**config, **files},
            wake=self._wake[0],
            secrets=list(secrets.values()),
            line_size_max=self.options.line_size_max,
        )


def without_bare_mark(state: Any) -> Any:
    """Return the state without the mark of the stream under way, if that stream has no bookmark yet.

    Taps for MySQL leave such a stream out of the whole run. The mark is only a hint where to begin.
    """
    if not isinstance(state, dict) or "currently_syncing" not in state:
        return state
    bookmarks = state.get("bookmarks")
    if isinstance(bookmarks, dict) and bookmarks.get(state["currently_syncing"]):
        return state
    return {name: value for name, value in state.items() if name != "currently_syncing"}

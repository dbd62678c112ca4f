"""The stdio connector: reads lines from standard input, writes lines to standard output."""

import os
import select
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from pydantic import Field

from conduit_connectors.json_lines import JsonLines
from conduit_connectors.line_formats import (
    FORM_OF_LINES,
    encode_json_lines,
    encode_opencdc_lines,
    encode_raw_lines,
    parse_raw,
)
from conduit_connectors.lines import LINE_SIZE_MAX, LineBuffer
from conduit_connectors.numbering import number_of, positions_of
from conduit_py import sdk
from conduit_py.sdk import Batch, EndOfSource, FatalError, NothingYet, Options, Reading, Records, TransientError

_ENCODERS = {"lines": encode_raw_lines, "json": encode_json_lines, "opencdc": encode_opencdc_lines}
_BLOCK_SIZE = 64 * 1024
_WAIT_SECONDS = 0.5


class SourceOptions(Options):
    """Options of the stdio source."""

    format: Literal["lines", "json"] = Field(default="lines", description="what a line is: raw bytes or a JSON object")
    line_size_max: int = Field(default=LINE_SIZE_MAX, ge=1, description="the most bytes of a line")


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    format: Literal["lines", "json"]
    line_size_max: int


class Source(sdk.SourceConnector[SourceOptions]):
    """One record per line of standard input, until it ends; the position is the number of the line.

    At-most-once across restarts: a pipe cannot be read again, so lines that were not acked when the process died
    are lost. Within a run no line is lost. Line numbers continue after a restart, so that no two lines ever have
    the same position. A line that cannot be read becomes a dead letter, as with the file source.
    """

    resumable: ClassVar[bool] = False
    _fd: ClassVar[int] = 0
    _wake: tuple[int, int] | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "a process has one standard input"

    @property
    def gives(self) -> Any:
        return FORM_OF_LINES[self.options.format]

    def open(self, position: bytes | None) -> None:
        self._line = 0 if position is None else number_of("stdio", position)
        in_json = self.options.format == "json"
        self._buffer = LineBuffer(0, self.options.line_size_max, skip_bom=in_json)
        self._parse = JsonLines(self.payload_type).parse if in_json else parse_raw
        # A blocking read cannot be interrupted; a byte in this pipe wakes it for a stop.
        self._wake = os.pipe()

    def check_position(self, position: bytes) -> None:
        number_of("stdio", position)

    def locate_record(self, position: bytes) -> str | None:
        return f"standard input, line {number_of('stdio', position)}"

    def read(self, n: int) -> Records | Reading:
        while True:
            lines = self._buffer.take(n)
            numbers = range(self._line + 1, self._line + len(lines.texts) + 1)
            self._line += len(lines.texts)
            reading = self._parse(lines, positions_of("stdio", numbers))
            if reading.records:
                return reading if reading.refused else reading.records
            if not len(self._buffer):
                self._fill()

    def stop(self) -> None:
        if self._wake is not None:
            os.write(self._wake[1], b"!")

    def teardown(self) -> None:
        if self._wake is not None:
            wake, self._wake = self._wake, None
            for fd in wake:
                os.close(fd)

    def _fill(self) -> None:
        """Fill the buffer. Raises EndOfSource at the end or when stopped, NothingYet after a while."""
        assert self._wake is not None
        if self._buffer.ended:
            raise EndOfSource
        ready = _wait([self._fd, self._wake[0]], select.POLLIN)
        if self._wake[0] in ready:
            raise EndOfSource
        if self._fd not in ready:
            raise NothingYet
        try:
            block = os.read(self._fd, _BLOCK_SIZE)
        except BlockingIOError:
            raise NothingYet from None
        except OSError as error:
            raise FatalError(f"cannot read standard input: {error.strerror}", suggestion="is it closed?") from error
        if block:
            self._buffer.feed(block)
        else:
            self._buffer.finish()


class DestinationOptions(Options):
    """Options of the stdio destination."""

    format: Literal["lines", "json", "opencdc"] = Field(
        default="opencdc",
        description="what a line is: raw payload bytes, the payload as a JSON object, or the whole record",
    )


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    format: Literal["lines", "json", "opencdc"]


class Destination(sdk.DestinationConnector[DestinationOptions]):
    """A line per record on standard output; a record counts as handled once the system has taken its line.

    At-least-once up to the pipe: the program at its other end is not covered. A record that the format cannot
    carry is refused alone.
    """

    _fd: ClassVar[int] = 1

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def takes(self) -> Any:
        return FORM_OF_LINES[self.options.format]

    def write(self, batch: Batch) -> dict[int, str]:
        text, refused = _ENCODERS[self.options.format](batch)
        view = memoryview(text)
        while view:
            view = view[self._write_some(view) :]
        return refused

    def _write_some(self, view: memoryview) -> int:
        try:
            return os.write(self._fd, view)
        except BlockingIOError:
            # The parent process may have made the shared terminal or pipe non-blocking.
            _wait([self._fd], select.POLLOUT)
            return 0
        except BrokenPipeError as error:
            what = "standard output is closed: the program that reads it has ended"
            raise FatalError(what, suggestion="keep the reader running until the pipeline has ended") from error
        except OSError as error:
            raise TransientError(f"cannot write to standard output: {error.strerror}") from error


def _wait(fds: list[int], event: int) -> set[int]:
    """Return the descriptors that are ready, have an error or are closed, after a short wait."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, event)
    return {fd for fd, _ in poll.poll(_WAIT_SECONDS * 1000)}

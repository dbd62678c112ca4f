"""What `journal cat` does: the messages of a journal, in words and as JSON."""

import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from conduit_py.cli.complaint import complain
from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put, put_json
from conduit_py.cli.table import printable
from conduit_py.errors import RecordRefused
from conduit_py.journal.body import decode_record
from conduit_py.journal.clock import unix_seconds
from conduit_py.journal.committed import CommittedReader
from conduit_py.journal.fault import JournalDamaged, JournalGap, JournalUnfit
from conduit_py.journal.file_reader import JournalFiles
from conduit_py.journal.message_id import NO_ID
from conduit_py.journal.sequencer import Checkpoint, Slice

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Wanted:
    """Which messages to print, and how."""

    offset: int
    count: int | None
    uncommitted: bool
    follow: bool
    json: bool


def print_messages(directory: Path, wanted: Wanted) -> ExitCode:
    """Print messages until there are no more, or enough, or for ever. Damage on the way makes the exit code."""
    files = JournalFiles(directory)
    if files.id is None and not wanted.follow:
        raise JournalUnfit(f"there is no journal in {directory}", suggestion="name the directory of a journal")
    slices = _Slices(files, wanted)
    left = wanted.count
    for found in slices:
        for index in range(found.first, found.stop):
            _print(found, index, as_json=wanted.json)
            if left is not None and (left := left - 1) == 0:
                return slices.exit_code
    return slices.exit_code


class _Slices:
    """Messages from a journal; what is damaged or missing is said, and passed."""

    def __init__(self, files: JournalFiles, wanted: Wanted) -> None:
        self.exit_code = ExitCode.OK
        self._wanted = wanted
        self._plain = files.reader(wanted.offset) if wanted.uncommitted else None
        self._committed = None if wanted.uncommitted else CommittedReader(files, Checkpoint(wanted.offset))

    def __iter__(self) -> Iterator[Slice]:
        while True:
            try:
                found = self._read()
            except (JournalDamaged, JournalGap) as fault:
                self.exit_code = complain(fault)
                continue
            if found is not None:
                yield found
            elif self._wanted.follow:
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _read(self) -> Slice | None:
        if self._committed is not None:
            return self._committed.read()
        assert self._plain is not None
        frame = self._plain.read()
        return None if frame is None else Slice(frame, 0, frame.count)


def _print(found: Slice, index: int, *, as_json: bool) -> None:
    frame = found.frame
    id = frame.id.later(index)
    body = frame.bodies[index]
    published = None if id is NO_ID else datetime.fromtimestamp(unix_seconds(id.clock), UTC).isoformat()
    if as_json:
        put_json(
            {
                "offset": frame.begin,
                "index": index,
                "id": None if id is NO_ID else str(id),
                "flag": id.flag.name,
                "published": published,
                **_decoded(body),
            }
        )
        return
    (kind, value), *_ = _decoded(body).items()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    put(f"{frame.begin}.{index}  {id.flag.name:8}  {published or '-':32}  {kind}: {printable(text)}")


def _decoded(body: bytes) -> dict[str, Any]:
    """A record where it is one, else text, else bytes in base64; as JSON can carry it."""
    try:
        return {"record": msgspec.to_builtins(decode_record(body, b"").to_map(), builtin_types=())}
    except (RecordRefused, msgspec.ValidationError, ValueError, TypeError):
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}

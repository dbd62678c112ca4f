"""What the commands `journal` do: list, verify and repair the files of a journal, and print its messages."""

import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from conduit_py.cli.errors import print_error
from conduit_py.cli.output import ExitCode, put, put_json, put_table
from conduit_py.errors import RecordRefused
from conduit_py.journal.audit import HARMLESS, Audit, AuditFinding, audit, repair
from conduit_py.journal.errors import JournalDamaged, JournalGap, JournalUnfit
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import JournalFiles
from conduit_py.journal.frame import decode_body
from conduit_py.journal.message_id import NO_ID, unix_seconds
from conduit_py.journal.sequencer import Checkpoint, Slice
from conduit_py.journal.transactions import CommittedReader
from conduit_py.journal.transactions import release_writer as release_owner


def show_segments(directory: Path, *, as_json: bool) -> ExitCode:
    """Print the segments and the registers."""
    found = audit(directory)
    if as_json:
        put_json(_fields(found))
        return ExitCode.OK
    rows = [
        (each.name, str(each.begin), str(each.end), str(each.frames), str(each.messages), each.created)
        for each in found.segments
    ]
    headings = ("SEGMENT", "BEGIN", "END", "FRAMES", "MESSAGES", "CREATED")
    put_table(headings, rows, right=headings[1:5])
    for label, values in found.registers.items():
        put(f"register {label} = {', '.join(values)}")
    return ExitCode.OK


def verify_journal(directory: Path, *, as_json: bool) -> ExitCode:
    """Print every finding with what is lost there, and whether the journal is sound."""
    found = audit(directory)
    if as_json:
        put_json({**_fields(found), "sound": found.sound, "lost": [each._asdict() for each in found.lost]})
    else:
        for finding in found.findings:
            put(_finding_text(finding))
        messages = sum(each.messages for each in found.segments)
        put(f"{len(found.segments)} segments, {messages} messages: {_verdict(directory, found)}")
    if not found.sound:
        return ExitCode.FAILED
    return ExitCode.LOST if found.lost else ExitCode.OK


def _verdict(directory: Path, found: Audit) -> str:
    places = "one place" if len(found.lost) == 1 else f"{len(found.lost)} places"
    lost = f"messages are lost at {places}" if found.lost else "no message is lost"
    if not found.sound:
        return f"not sound: repair it with `conduit-py journal repair {directory}`; {lost}"
    return f"can be used, but {lost}" if found.lost else "sound"


def repair_journal(directory: Path, *, release: str | None, as_json: bool) -> ExitCode:
    """Repair, and print what was repaired."""
    repaired = repair(directory)
    released = False
    if release is not None:
        with FileLog(directory) as log:
            released = release_owner(log, release)
    if as_json:
        put_json({"repaired": [finding._asdict() for finding in repaired], "released": released})
        return ExitCode.OK
    for finding in repaired:
        put(f"repaired: {_finding_text(finding)}")
    if not repaired:
        put("there was nothing to repair")
    if release is not None:
        put(f"the writer of {release!r} was released" if released else f"there is no writer of {release!r}")
    return ExitCode.OK


def _fields(found: Audit) -> dict[str, object]:
    return {
        "journal": found.id,
        "segments": [each._asdict() for each in found.segments],
        "registers": found.registers,
        "findings": [each._asdict() for each in found.findings],
    }


def _finding_text(finding: AuditFinding) -> str:
    place = f"offsets {finding.begin} to {finding.end}" if finding.end > finding.begin else f"offset {finding.begin}"
    return f"{finding.kind}: {place}: {finding.what} ({_loss_text(finding)})"


def _loss_text(finding: AuditFinding) -> str:
    if finding.kind == "unfinished" and finding.messages is None:
        return "harmless if a writer died here; nothing tells whether the file was cut short instead"
    if finding.kind in HARMLESS:
        return "harmless: nothing that was confirmed is lost"
    if finding.messages is None:
        size = finding.end - finding.begin
        return f"every message in these {size} bytes is lost" if size else "every message in it is lost"
    if finding.messages == 0:
        return "no message is lost"
    return "1 message is lost" if finding.messages == 1 else f"{finding.messages} messages are lost"


_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class CatOptions:
    """Which messages to print, and how."""

    offset: int
    count: int | None
    uncommitted: bool
    follow: bool
    json: bool


def print_messages(directory: Path, wanted: CatOptions) -> ExitCode:
    """Print messages up to the end or `count`, or for ever with `follow`. Damage on the way sets the exit code."""
    files = JournalFiles(directory)
    if files.id is None and not wanted.follow:
        files.check_end()
        raise JournalUnfit(f"there is no journal in {directory}", suggestion="name the directory of a journal")
    slices = _MessageSlices(files, wanted)
    try:
        files.check_end()
    # What is there is printed nevertheless.
    except JournalUnfit as error:
        print_error(error)
        slices.exit_code = ExitCode.FAILED
    left = wanted.count
    for found in slices:
        for index in range(found.first, found.stop):
            _print(found, index, as_json=wanted.json)
            if left is not None and (left := left - 1) == 0:
                return slices.exit_code
    return slices.exit_code


class _MessageSlices:
    """Reads messages from a journal. Damage and gaps are reported on stderr and skipped."""

    def __init__(self, files: JournalFiles, wanted: CatOptions) -> None:
        self.exit_code = ExitCode.OK
        self._wanted = wanted
        self._plain = files.reader(wanted.offset) if wanted.uncommitted else None
        self._committed = None if wanted.uncommitted else CommittedReader(files, Checkpoint(wanted.offset))

    def __iter__(self) -> Iterator[Slice]:
        while True:
            try:
                found = self._read()
            # Reading goes on behind the damage: what can still be read is what a user wants to see.
            except (JournalDamaged, JournalGap) as error:
                self.exit_code = print_error(error)
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
                **_body_fields(body),
            }
        )
        return
    (kind, value), *_ = _body_fields(body).items()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    put(f"{frame.begin}.{index}  {id.flag.name:8}  {published or '-':32}  {kind}: {text}")


def _body_fields(body: bytes) -> dict[str, Any]:
    """The body as JSON fields: a record if it is one, else text, else bytes in base64."""
    # Any program may write to a journal, so a body that is no record is no error.
    try:
        return {"record": msgspec.to_builtins(decode_body(body, b"").to_map(), builtin_types=())}
    except (RecordRefused, msgspec.ValidationError, ValueError, TypeError):
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}

"""What `journal ls`, `verify` and `repair` do: the files of a journal, seen from outside."""

from pathlib import Path

from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put, put_json
from conduit_py.cli.table import put_table
from conduit_py.journal.audit import HARMLESS, Audit, Finding, audit
from conduit_py.journal.claim import release as release_owner
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.repair import repair


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
    """Print what is wrong, and whether it matters."""
    found = audit(directory)
    if as_json:
        put_json({**_fields(found), "sound": found.sound})
    else:
        for finding in found.findings:
            put(_sentence(finding))
        messages = sum(each.messages for each in found.segments)
        verdict = "sound" if found.sound else f"not sound: repair it with `conduit-py journal repair {directory}`"
        put(f"{len(found.segments)} segments, {messages} messages: {verdict}")
    return ExitCode.OK if found.sound else ExitCode.FAILED


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
        put(f"repaired: {_sentence(finding)}")
    if not repaired:
        put("there was nothing to repair")
    if release is not None:
        put(f"the writer of {release!r} was let go" if released else f"nobody writes for {release!r}")
    return ExitCode.OK


def _fields(found: Audit) -> dict[str, object]:
    return {
        "journal": found.id,
        "segments": [each._asdict() for each in found.segments],
        "registers": found.registers,
        "findings": [each._asdict() for each in found.findings],
    }


def _sentence(finding: Finding) -> str:
    place = f"offsets {finding.begin} to {finding.end}" if finding.end > finding.begin else f"offset {finding.begin}"
    harmless = " (harmless)" if finding.kind in HARMLESS else ""
    return f"{finding.kind}: {place}: {finding.what}{harmless}"

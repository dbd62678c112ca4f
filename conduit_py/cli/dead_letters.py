"""What the commands `dlq` do: list, show, edit, replay and discard dead letters."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conduit_py.cli.client import ApiClient, connect
from conduit_py.cli.errors import short_text
from conduit_py.cli.output import ExitCode, ago, json_text, put, put_json, put_lines, put_table
from conduit_py.cli.server_commands import ServerCall
from conduit_py.defaults import LETTERS_PAGE_MAX
from conduit_py.errors import ConduitError, RecordRefused
from conduit_py.record import decode_json


class CommandUnclear(ConduitError):
    """The command needs more arguments or better input."""

    code = "command.unclear"


def selection(ids: Sequence[str], fields: dict[str, Any]) -> dict[str, Any]:
    """The letters that a command selects, in the form of the API."""
    return {"ids": list(ids)} if ids else {"filter": fields}


def show_all(call: ServerCall, fields: dict[str, Any], limit: int) -> ExitCode:
    """Print a line for each letter."""
    with connect(call) as client:
        answer = _pages(client, fields, limit)
    letters = answer["letters"]
    if call.json:
        put_json(answer)
    elif letters:
        headings = ("LETTER", "PIPELINE", "NODE", "STATE", "TRIES", "REFUSED", "ERROR")
        put_table(headings, [_row(letter) for letter in letters], right=("TRIES", "REFUSED"))
        if answer["total"] > len(letters):
            put(f"{len(letters)} of {answer['total']:,}; --limit shows more", sys.stderr)
    else:
        put("there are no such dead letters")
    return ExitCode.OK


def _pages(client: ApiClient, fields: dict[str, Any], limit: int) -> dict[str, Any]:
    answer: dict[str, Any] = client.request(
        "GET", "dead-letters", query={**fields, "limit": min(limit, LETTERS_PAGE_MAX)}
    )
    while answer["next"] is not None and len(answer["letters"]) < limit:
        room = min(limit - len(answer["letters"]), LETTERS_PAGE_MAX)
        more = client.request("GET", "dead-letters", query={**fields, "limit": room, "cursor": answer["next"]})
        answer = {**more, "letters": answer["letters"] + more["letters"]}
    return answer


def show_causes(call: ServerCall, fields: dict[str, Any]) -> ExitCode:
    """Print how many letters there are of each kind."""
    with connect(call) as client:
        answer = client.request("GET", "dead-letters", "causes", query=fields)
    if call.json:
        put_json(answer)
    elif answer["causes"]:
        rows = [
            (f"{each['count']:,}", each["pipeline"], each["node"], _since(each["last_at"]), each["cause"])
            for each in answer["causes"]
        ]
        put_table(("LETTERS", "PIPELINE", "NODE", "LATEST", "CAUSE"), rows, right=("LETTERS", "LATEST"))
    else:
        put("there are no such dead letters")
    return ExitCode.OK


def show(call: ServerCall, id: str) -> ExitCode:
    """Print everything about a letter."""
    with connect(call) as client:
        letter = client.request("GET", "dead-letters", id)
    if call.json:
        put_json(letter)
        return ExitCode.OK
    on_its_way = f" for {', '.join(letter['queued_for'])}" if letter["queued_for"] else ""
    put(f"{id}: {letter['state']}{on_its_way}, of {letter['source']} in {letter['pipeline']}")
    if letter.get("origin"):
        put(f"from {short_text(letter['origin'])}")
    put("")
    for refusal in letter["history"]:
        when = datetime.fromtimestamp(refusal["at"], UTC).isoformat(sep=" ", timespec="seconds")
        put(f"  {when}  attempt {refusal['attempt']}  {refusal['node']}: {refusal['error']}")
        if refusal.get("location"):
            put(f"  see {short_text(refusal['location'])}")
    for each in letter["records"]:
        put("")
        put(f"the record at {each['node']}{', edited' if each['original'] else ''}:")
        for path in each["base64"]:
            put(f"{path} is bytes, in base64{_as_text(each['record'], path)}")
        put_lines(_pretty(each["record"]))
        if each["cut"]:
            put(f"not shown whole: {', '.join(each['cut'])}", sys.stderr)
    return ExitCode.OK


def _as_text(record: dict[str, Any], path: str) -> str:
    """What the bytes of a whole part of a record are as text; "" for others, and where they are no text."""
    payload = record["payload"]
    parts = {"position": record["position"], "key": record["key"]}
    encoded = (parts | {f"payload.{name}": payload[name] for name in payload}).get(path)
    try:
        return f": {short_text(b64decode(encoded).decode())}" if isinstance(encoded, str) else ""
    except ValueError:
        return ""


def edit(call: ServerCall, id: str, file: Path | None, node: str | None) -> ExitCode:
    """Replace the record of a letter by the content of a file, or by what the user saves in an editor."""
    with connect(call) as client:
        letter = client.request("GET", "dead-letters", id)
        shown = next((each["record"] for each in letter["records"] if each["node"] == node), letter["record"])
        record = _edit_in_editor(shown) if file is None else _read_record(file)
        # An editor that was closed without a change means that the user thought better of it.
        if record == shown and file is None:
            put("nothing was changed")
            return ExitCode.OK
        body = {"record": record} | ({"node": node} if node else {})
        answer = client.request("PUT", "dead-letters", id, "record", body=body)
    if call.json:
        put_json(answer)
    else:
        # What the user copies must work: without a server, the command needs the state.
        where = "".join(f" --{name} {value}" for name in ("state", "pipelines") if (value := getattr(call, name, None)))
        put(f"{id}: edited; `conduit-py dlq replay {id}{where}` sends it")
    return ExitCode.OK


def replay(call: ServerCall, which: dict[str, Any], destinations: Sequence[str], *, dry_run: bool) -> ExitCode:
    """Send letters again, and print the result."""
    body = {**which, "dry_run": dry_run} | ({"destinations": list(destinations)} if destinations else {})
    with connect(call) as client:
        answer = client.request("POST", "dead-letters", "replay", body=body)
    if call.json:
        put_json(answer)
    else:
        put(_replay_sentence(answer, dry_run=dry_run))
        for (pipeline, nodes), count in _entries(answer["letters"]).most_common():
            put(f"  {_count(count)} {'enters' if count == 1 else 'enter'} {pipeline} at {', '.join(nodes)}")
        if len(answer["letters"]) < answer["queued"] and answer["letters"]:
            put(f"  these are the first {len(answer['letters']):,}")
        for note in answer["notes"]:
            put(note)
        for obstacle in answer["obstacles"]:
            put(f"{obstacle['id']} cannot be sent: {obstacle['reason']}", sys.stderr)
        for id in answer["not_found"]:
            put(f"there is no dead letter {id}: it may have been delivered or discarded", sys.stderr)
    return ExitCode.FAILED if answer["not_found"] or answer["obstacles"] else ExitCode.OK


def discard(call: ServerCall, which: dict[str, Any], *, dry_run: bool, yes: bool) -> ExitCode:
    """Delete letters, after the user has confirmed their number."""
    with connect(call) as client:
        # Counted first: a filter may match far more than the user thinks, and discarding cannot be undone.
        count = client.request("POST", "dead-letters", "discard", body={**which, "dry_run": True})["discarded"]
        if not dry_run and count and not yes and not _ask_to_discard(count):
            put("nothing was discarded")
            return ExitCode.FAILED
        answer = client.request("POST", "dead-letters", "discard", body={**which, "dry_run": dry_run})
    if call.json:
        put_json(answer)
    else:
        put(f"{_count(answer['discarded'])} {'would be ' if dry_run else ''}discarded")
    return ExitCode.OK


def _ask_to_discard(count: int) -> bool:
    # Without a terminal nobody can answer, and a script must not delete by accident.
    if not sys.stdin.isatty():
        raise CommandUnclear(
            f"{_count(count)} would be deleted for good", suggestion="give --yes to discard without confirmation"
        )
    sys.stderr.write(f"Discard {_count(count)} for good? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _entries(letters: Sequence[dict[str, Any]]) -> Counter[tuple[str, tuple[str, ...]]]:
    """How many of these letters enter each pipeline at the same nodes."""
    return Counter((letter["pipeline"], tuple(letter["nodes"])) for letter in letters)


def _replay_sentence(answer: dict[str, Any], *, dry_run: bool) -> str:
    queued, before = answer["queued"], answer["already_queued"]
    said = f"{_count(queued)} {'would be' if dry_run else 'is' if queued == 1 else 'are'} sent again"
    if before:
        said += f"; {before:,} {'was' if before == 1 else 'were'} on {'its' if before == 1 else 'their'} way already"
    return f"{said}; {answer['impossible']:,} cannot be" if answer["impossible"] else said


def _edit_in_editor(record: dict[str, Any]) -> Any:
    """Open the record in the user's editor and return what was saved."""
    # Split, not given to a shell: EDITOR may have options, but must not run anything else.
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    # A folder of its own, mode 0700: the record may be confidential, and editors write backups beside the file.
    folder = Path(tempfile.mkdtemp(prefix="conduit-"))
    file = folder / "record.json"
    kept = False
    try:
        file.write_text(_pretty(record) + "\n")
        try:
            done = subprocess.run([*editor, str(file)])
        except OSError as error:
            raise CommandUnclear(
                f"the editor {editor[0]} cannot be started: {error.strerror}",
                suggestion="name yours in EDITOR, or give the record with --record FILE",
            ) from error
        if done.returncode:
            raise CommandUnclear(f"the editor ended with {done.returncode}; nothing was changed")
        try:
            return _read_record(file)
        except CommandUnclear as unclear:
            # A forgotten comma must not cost the user the work of an hour.
            kept = True
            hint = f"your text is kept there: correct it and give it with --record {file}, then remove {folder}"
            raise CommandUnclear(unclear.message, suggestion=hint) from unclear
    finally:
        if not kept:
            shutil.rmtree(folder)


def _read_record(file: Path) -> Any:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        record = decode_json(text)
    except OSError as error:
        raise CommandUnclear(f"{file} cannot be read: {error.strerror}") from error
    except (RecordRefused, ValueError) as error:
        raise CommandUnclear(f"{file} is not JSON that can be used: {error}") from error
    if not isinstance(record, dict):
        raise CommandUnclear(f"{file} is not a record, which is an object", suggestion="`dlq show ID --json` has one")
    return record


def _pretty(record: dict[str, Any]) -> str:
    return json_text(record, indented=True)


def _row(letter: dict[str, Any]) -> tuple[str, ...]:
    nodes, tries = ", ".join(letter["nodes"]), str(letter["attempts"])
    return letter["id"], letter["pipeline"], nodes, letter["state"], tries, _since(letter["last_at"]), letter["error"]


def _since(at: float) -> str:
    return f"{ago(time.time() - at)} ago"


def _count(letters: int) -> str:
    return "1 letter" if letters == 1 else f"{letters:,} letters"

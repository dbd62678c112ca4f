"""The commands `dlq` against a real server, with letters in a real state directory."""

import json
import shutil
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Serving

PIPELINE = """
from pathlib import Path

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source
from conduit_py.errors import RecordRefused
from ends import Count, Lines


def check(record: Record) -> Record:
    number = record.payload["number"]
    if number % 3 == 0 and not Path("mended").exists():
        raise RecordRefused(f"row {number}: divisible by three")
    return record


odd = Pipeline(
    "odd",
    sources=[Source("count", Count(to=10))],
    processors=[check],
    destinations=[Destination("lines", Lines(path="odd.txt"))],
    dead_letters=DeadLetters("journal"),
)
"""

OF_A_FILE = """
from conduit_connectors import file
from conduit_py import DeadLetters, Pipeline

lines = Pipeline(
    "lines",
    sources={"in": file.Source(path="lines.jsonl", format="json")},
    destinations={"out": file.Destination(path="out.jsonl", format="json")},
    dead_letters=DeadLetters.keep(),
)
"""


@pytest.fixture
def odd(serving: "Serving") -> "Serving":
    (serving.folder / "odd.py").write_text(PIPELINE)
    serving.start()
    serving.until("odd", lambda shown: shown["status"] == "completed")
    return serving


def written(serving: "Serving") -> list[int]:
    return sorted(int(line) for line in Path(serving.command.folder, "odd.txt").read_text().splitlines())


def test_letters_are_listed_counted_shown_edited_replayed_and_discarded(odd: "Serving") -> None:
    listed = odd("dlq", "list")
    causes = odd("dlq", "list", "--causes", "--pipeline", "odd", "--since", "1h")
    letters = odd.json("dlq", "list")["letters"]
    large = odd.json("dlq", "list", "--when", "payload.number > 6")["letters"]
    nine, six, three = (letter["id"] for letter in letters)
    shown = odd("dlq", "show", nine)
    record = odd.json("dlq", "show", nine)["record"]
    record["payload"]["after"]["number"] = 100
    odd.command.write(json.dumps(record), "record.json")
    edited = odd("dlq", "edit", nine, "--record", "record.json")
    dry = odd("dlq", "replay", "--pipeline", "odd", "--dry-run")
    discarded = odd("dlq", "discard", three, "--yes")
    Path(odd.command.folder, "mended").touch()
    replayed = odd("dlq", "replay", "--all")
    odd("pipelines", "start", "odd")
    odd.until("odd", lambda shown: shown["status"] == "completed")

    assert large == letters[:1]
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["LETTER", nine, six, three]
    assert "row 9: divisible by three" in listed.stdout
    assert causes.stdout.splitlines()[1].split()[:3] == ["3", "odd", "check"]
    assert causes.stdout.splitlines()[1].endswith("row #: divisible by three")
    assert shown.stdout.startswith(f"{nine}: kept, of count in odd\n")
    assert "attempt 1  check: row 9: divisible by three" in shown.stdout
    assert '"number": 9' in shown.stdout
    assert edited.stdout == f"{nine}: edited; `conduit-py dlq replay {nine}` sends it\n"
    assert dry.stdout.splitlines()[0] == "3 letters would be sent again"
    assert dry.stdout.splitlines()[1] == "  3 letters enter odd at check"
    assert discarded.stdout == "1 letter discarded\n"
    assert replayed.stdout == (
        "2 letters are sent again\nodd is not running: its letters are sent when it is started\n"
    )
    assert written(odd) == [1, 2, 4, 5, 6, 7, 8, 10, 100]
    assert odd("dlq", "list").stdout == "there are no such dead letters\n"


def test_a_line_that_is_no_json_is_shown_as_the_text_that_it_is(serving: "Serving") -> None:
    Path(serving.command.folder, "lines.jsonl").write_text('{"number": 1}\n{"number": two}\n')
    (serving.folder / "lines.py").write_text(OF_A_FILE)
    serving.start()
    serving.until("lines", lambda shown: shown["status"] == "completed")
    shown = serving("dlq", "show", serving.json("dlq", "list")["letters"][0]["id"])

    named, _, record = shown.stdout.partition("\n{")
    assert named.splitlines()[-1] == 'payload.after is bytes, in base64: {"number": two}'
    assert "position is bytes, in base64: " in named
    assert json.loads("{" + record)["payload"]["after"] == b64encode(b'{"number": two}').decode()


def test_a_letter_is_edited_in_the_editor(odd: "Serving") -> None:
    id = odd.json("dlq", "list")["letters"][0]["id"]
    untouched = odd("dlq", "edit", id, EDITOR="true")
    changed = odd("dlq", "edit", id, EDITOR="sed -i s/9/12/")
    failed = odd("dlq", "edit", id, EDITOR="false")
    missing = odd("dlq", "edit", id, EDITOR="no-such-editor")
    broken = odd("dlq", "edit", id, EDITOR="sed -i 1d")
    kept = Path(broken.stderr.split("--record ")[-1].split(",")[0])

    assert untouched.stdout == "nothing was changed\n"
    assert changed.returncode == 0
    assert odd.json("dlq", "show", id)["record"]["payload"]["after"]["number"] == 12
    assert "the editor ended with 1" in failed.stderr
    assert "EDITOR" in missing.stderr
    assert "is not JSON" in broken.stderr
    assert '"number": 12' in kept.read_text()
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(kept.parent)


def test_one_letter_is_spoken_of_as_one(odd: "Serving") -> None:
    id = odd.json("dlq", "list")["letters"][0]["id"]
    first, second = odd("dlq", "replay", id), odd("dlq", "replay", id)

    assert first.stdout.splitlines()[0] == "1 letter is sent again"
    assert second.stdout.splitlines()[0] == "0 letters are sent again; 1 was on its way already"


def test_what_is_unclear_or_gone_ends_with_a_code_and_advice(odd: "Serving") -> None:
    gone = "a" * 16
    everything = odd.command("dlq", "discard", "--url", odd.url)
    both = odd.command("dlq", "replay", gone, "--all", "--url", odd.url)
    unknown = odd("dlq", "show", gone)
    not_found = odd("dlq", "replay", gone)
    unasked = odd("dlq", "discard", "--all")
    when = odd.command("dlq", "list", "--since", "yesterday", "--url", odd.url)
    elsewhere = odd("dlq", "replay", "--all", "--to", "mart")

    assert (everything.returncode, both.returncode, when.returncode) == (2, 2, 2)
    assert "--all" in everything.stderr
    assert unknown.returncode == 1
    assert "no dead letter" in unknown.stderr
    assert (not_found.returncode, not_found.stdout) == (1, "0 letters are sent again\n")
    assert "it may have been delivered or discarded" in not_found.stderr
    assert unasked.returncode == 1
    assert "--yes" in unasked.stderr
    assert elsewhere.returncode == 1
    assert "not on the way to these destinations" in elsewhere.stderr
    assert odd.json("dlq", "list")["total"] == 3

"""The commands `journal`: what a person sees of a journal, sound and damaged, and their exit codes."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conduit_py.journal.file_log import FileLog
from conduit_py.journal.frame import encode_body
from conduit_py.journal.transactions import Publisher, WriterClaim
from conduit_py.record import Record

if TYPE_CHECKING:
    from tests.cli.conftest import CommandInside


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One transaction that is committed, one that is not, and a message that is no record."""
    with FileLog(tmp_path / "orders", segment_size=300) as log:
        publisher = Publisher()
        claim = WriterClaim(log, "shop", 3, publisher)
        records = [encode_body(Record.of({"n": number}, key=b"key")) for number in range(3)]
        log.append(records, id=publisher.in_transaction(log.name, 3), check=claim.check)
        log.append([b""], id=publisher.ack_intents()[0].id, check=claim.check)
        log.append([encode_body(Record.of({"n": 99}))], id=publisher.in_transaction(log.name))
        log.append([b"just text", b"\xff\xfe"])
    return tmp_path / "orders"


def damage(directory: Path) -> None:
    path = sorted(directory.glob("*.journal"))[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"\x81\xa1n\x01")] ^= 1
    path.write_bytes(data)


def test_ls_shows_segments_and_who_may_write(inside: "CommandInside", directory: Path) -> None:
    done = inside("journal", "ls", str(directory))

    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["SEGMENT", "BEGIN", "END", "FRAMES", "MESSAGES", "CREATED"]
    assert "register writer/shop = 3:" in done.stdout
    code, (answer,) = inside.json("journal", "ls", str(directory))
    assert code == 0
    assert sum(segment["messages"] for segment in answer["segments"]) == 8
    assert len(answer["segments"]) > 1


def test_cat_prints_what_is_committed(inside: "CommandInside", directory: Path) -> None:
    code, messages = inside.json("journal", "cat", str(directory))

    assert code == 0
    records = [message["record"]["payload"]["after"] for message in messages if "record" in message]
    assert records == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [message.get("text") or message.get("base64") for message in messages[3:]] == ["just text", "//4="]
    assert {message["flag"] for message in messages} == {"CONTINUE", "OUTSIDE"}
    done = inside("journal", "cat", str(directory), "--count", "1")
    assert done.stdout.count("\n") == 1
    assert 'record: {"position":"","operation":"create"' in done.stdout


def test_cat_prints_everything_if_asked_and_from_an_offset(inside: "CommandInside", directory: Path) -> None:
    code, messages = inside.json("journal", "cat", str(directory), "--uncommitted")

    assert code == 0
    assert [message["flag"] for message in messages] == ["ACK", *["CONTINUE"] * 3, "ACK", "CONTINUE", *["OUTSIDE"] * 2]
    offset = messages[5]["offset"]
    _, rest = inside.json("journal", "cat", str(directory), "--uncommitted", "--offset", str(offset))
    assert rest == messages[5:]


def test_cat_follows_what_is_appended(command: "CommandInside", directory: Path) -> None:
    process = command.start("journal", "cat", str(directory), "--follow", "--json")
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    with FileLog(directory) as log:
        log.append([b"appended"])

    assert json.loads(process.stdout.readline())["text"] == "appended"
    process.kill()
    process.communicate()


def test_verify_reports_damage_by_offset_and_repair_sets_it_aside(inside: "CommandInside", directory: Path) -> None:
    assert inside("journal", "verify", str(directory)).stdout.endswith(" segments, 8 messages: sound\n")
    damage(directory)

    done = inside("journal", "verify", str(directory))
    assert done.returncode == 1
    assert done.stdout.startswith("damaged: offsets ")
    assert "a frame whose checksum does not fit (3 messages are lost)\n" in done.stdout
    assert "not sound: repair it with `conduit-py journal repair" in done.stdout
    code, (answer,) = inside.json("journal", "verify", str(directory))
    assert (code, answer["sound"], [each["messages"] for each in answer["lost"]]) == (1, False, [3])

    shown = inside("journal", "cat", str(directory))
    assert shown.returncode == 1
    assert "a frame whose checksum does not fit at offsets" in shown.stderr
    assert "just text" in shown.stdout

    repaired = inside("journal", "repair", str(directory))
    assert repaired.returncode == 0
    assert repaired.stdout.startswith("repaired: damaged: offsets ")
    given_up = inside("journal", "verify", str(directory))
    assert given_up.returncode == 5
    assert "set aside in an earlier repair (3 messages are lost)\n" in given_up.stdout
    assert given_up.stdout.endswith(" messages: can be used, but messages are lost at one place\n")
    assert inside("journal", "repair", str(directory)).stdout == "there was nothing to repair\n"
    assert os.listdir(directory / "quarantine") != []


def test_verify_tells_a_journal_that_was_cut_short_from_an_append_that_never_ended(
    inside: "CommandInside", directory: Path
) -> None:
    path = sorted(directory.glob("*.journal"))[-1]
    whole = path.read_bytes()
    path.write_bytes(whole + b"cjfr")
    torn = inside("journal", "verify", str(directory))
    path.write_bytes(whole[:-1])
    cut = inside("journal", "verify", str(directory))
    shown = inside("journal", "cat", str(directory))

    assert torn.returncode == 0
    assert "an unfinished frame (harmless: nothing that was confirmed is lost)\n" in torn.stdout
    assert torn.stdout.endswith(": sound\n")
    assert cut.returncode == 1
    assert cut.stdout.startswith("lost: offsets ")
    assert "the segment was cut short, or is damaged at its end (2 messages are lost)\n" in cut.stdout
    assert cut.stdout.endswith("; messages are lost at one place\n")
    assert shown.returncode == 1
    assert "was cut short or damaged at its end" in shown.stderr
    assert '"n":2' in shown.stdout


def test_repair_can_let_a_writer_go(inside: "CommandInside", directory: Path) -> None:
    done = inside("journal", "repair", str(directory), "--release", "shop")
    assert done.stdout == "there was nothing to repair\nthe writer of 'shop' was released\n"
    code, (answer,) = inside.json("journal", "repair", str(directory), "--release", "nobody")
    assert (code, answer) == (0, {"repaired": [], "released": False})
    assert "register writer/shop = 0:" in inside("journal", "ls", str(directory)).stdout


@pytest.mark.parametrize("name", ["ls", "cat", "verify", "repair"])
def test_a_directory_without_a_journal_is_an_error_of_the_environment(
    inside: "CommandInside", tmp_path: Path, name: str
) -> None:
    done = inside("journal", name, str(tmp_path))

    assert done.returncode == 3
    assert "there is no journal in" in done.stderr

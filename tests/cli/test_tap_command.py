"""`tap`: records as they pass a node of a real server, and what is printed of them."""

import json
import signal
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from conduit_py.cli.tap import record_lines

if TYPE_CHECKING:
    from tests.cli.conftest import Serving

DOUBLED = """
from conduit_py import Destination, Pipeline, Source, processor
from ends import Count, Lines


@processor
def double(record):
    record.payload["double"] = 2 * record.payload["number"]
    return record


doubled = Pipeline(
    "doubled",
    sources=[Source("count", Count(pause_seconds=0.01), batch_size=10)],
    processors=[double],
    destinations=[Destination("lines", Lines(path="doubled.txt"))],
)
"""
READ = "read-" + "r" * 20


def test_records_are_shown_with_what_the_node_changed(serving: "Serving") -> None:
    (serving.folder / "doubled.py").write_text(DOUBLED)
    serving.start()
    done = serving("tap", "doubled", "double", "--limit", "2")
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) == 4
    assert "  count #" in lines[0]
    assert "changed" in lines[0]
    number = int(lines[0].split(" at ")[1].split()[0])
    assert lines[1] == f"  + payload.after.double: {2 * number}"


def test_events_are_json_lines_for_programs(serving: "Serving") -> None:
    (serving.folder / "doubled.py").write_text(DOUBLED)
    serving.start()
    done = serving(
        "tap", "doubled", "double", "--json", "--limit", "3", "--rate", "100", "--when", "payload.number % 2 == 0"
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0
    assert [event["event"] for event in events] == ["record"] * 3
    for event in events:
        before, after = event["before"]["payload"]["after"], event["after"][0]["payload"]["after"]
        assert after == {**before, "double": 2 * before["number"]}
        assert before["number"] % 2 == 0


def test_ctrl_c_leaves_in_peace_and_a_server_that_ends_ends_it(serving: "Serving") -> None:
    (serving.folder / "doubled.py").write_text(DOUBLED)
    server = serving.start()
    leaving, staying = (
        serving.command.start("tap", "doubled", "lines", "--url", serving.url, "--json") for _ in range(2)
    )
    for process in (leaving, staying):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["outcome"] == "written"
    leaving.send_signal(signal.SIGINT)
    left = leaving.wait(300)
    server.send_signal(signal.SIGTERM)
    ended = staying.wait(300)
    assert staying.stderr is not None

    assert (left, ended) == (0, 3)
    assert f"the server at {serving.url} has ended the connection" in staying.stderr.read()


def test_what_cannot_be_tapped_is_said(serving: "Serving") -> None:
    (serving.folder / "doubled.py").write_text(DOUBLED)
    tokens = serving.command.folder / "tokens"
    tokens.write_text(f"read {READ}\n")
    tokens.chmod(0o600)
    serving.start("--token-file", str(tokens))
    refused = serving("tap", "doubled", "double", CONDUIT_API_TOKEN=READ)
    wrong = serving.apart("tap", "doubled", "double", "--rate", "0")

    assert refused.returncode == 1
    assert "this needs a token with the role operate" in refused.stderr
    assert wrong.returncode == 2
    assert "Must be >= 1" in wrong.stderr


def record(after: Any, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"position": "MQ==", "operation": "create", "metadata": {}, "key": None}
    return {**empty, **fields, "payload": {"before": None, "after": after}}


def event(outcome: str, before: Any, *after: Any, **more: Any) -> list[str]:
    """The lines of an event, less the time."""
    message = {"source": "web", "sequence": 7, "piece": [], "position": "MQ=="}
    made = {"error": None, "pieces": len(after) or 1, "cut": [], "skipped": 0, "message": message, "at": 0.0, **more}
    lines = record_lines({"outcome": outcome, "before": before, "after": list(after) or None, **made})
    text = [line.plain for line in lines]
    assert text[0].startswith("00:00:00.000  ")
    return [text[0].removeprefix("00:00:00.000  "), *text[1:]]


def test_a_change_is_shown_by_its_paths() -> None:
    before = record({"name": "a", "tags": [1, 2], "gone": True, "same": "x"}, metadata={"k": "1"})
    after = record({"name": "b", "tags": [1, 3, 4], "same": "x", "new": {"deep": None}}, metadata={"k": "1"})

    assert event("changed", before, after, skipped=12) == [
        "web #7 at 1  changed  (12 before it not shown)",
        "  ~ payload.after.name: 'a' → 'b'",
        "  ~ payload.after.tags[1]: 2 → 3",
        "  - payload.after.gone: True",
        "  + payload.after.tags[2]: 4",
        "  + payload.after.new.deep: None",
    ]


def test_what_ends_at_the_node_is_shown_whole() -> None:
    raw = b64encode(b"hello\x1b[2J").decode()

    assert event("refused", record(raw), error="no \x1b]0;x\x07 way") == [
        "web #7 at 1  refused: no \\x1b]0;x\\x07 way",
        "    operation: create",
        "    payload.after: hello\\x1b[2J",
    ]
    assert event("read", None, record({"a": 1}, key="/w==")) == [
        "web #7 at 1  read",
        "    operation: create",
        "    key: base64 /w==",
        "    payload.after.a: 1",
    ]


def test_pieces_are_compared_with_what_they_came_from() -> None:
    shown = event("split", record({"n": 1}), record({"n": 2}), record({"n": 3}), pieces=5, cut=["before.key"])

    assert shown == [
        "web #7 at 1  split into 5",
        "  piece 0",
        "  ~ payload.after.n: 1 → 2",
        "  piece 1",
        "  ~ payload.after.n: 1 → 3",
        "  and 3 more pieces",
        "  too long to be shown whole: before.key",
    ]


def test_the_fields_of_a_new_schema_are_shown_without_what_a_terminal_would_obey() -> None:
    fields = [
        {"name": "id", "type": "integer", "native": "bigint", "key": True, "nullable": False},
        {"name": "a\x1b[2Jb", "type": "decimal", "native": "numeric(12,2)", "key": False, "nullable": True},
        {"name": "cut"},
    ]
    schema = {"collection": "public.orders", "version": "7f", "fields": fields}

    assert event("read", None, record({"id": 1}), source_schema=schema)[1:5] == [
        "  schema of public.orders, version 7f",
        "    id: integer (bigint) key not null",
        "    a\\x1b[2Jb: decimal (numeric(12,2))",
        "    cut: …",
    ]

"""`check --connect`: every system is reached, all that is wrong is said at once, and nothing is changed."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Command

PROBED = """
import trio
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source, sdk

class Silent(sdk.DestinationConnector[sdk.Options]):
    async def probe(self):
        await trio.sleep_forever()
    async def write(self, batch): ...

class Wrong(Silent):
    def probe(self):
        raise ValueError("no such \\x1b[31mhost")

class Plain(sdk.DestinationConnector[sdk.Options]):
    async def write(self, batch): ...

orders = Pipeline(
    "orders",
    sources=[Source("shop", file.Source(path="orders.jsonl"))],
    destinations=[Destination("silent", Silent()), Destination("wrong", Wrong()), Destination("plain", Plain())],
)
copy = Pipeline(
    "copy",
    sources=[Source("shop", file.Source(path="orders.jsonl"))],
    destinations=[Destination("out", file.Destination(path="new/out.jsonl"))],
)
"""


def test_everything_that_cannot_be_reached_is_said_at_once(command: "Command") -> None:
    command.write(PROBED)
    (command.folder / "orders.jsonl").write_text("{}")
    done = command("check", "orders.py", "--connect", "--timeout", "0.2")
    as_json = command("check", "orders.py", "--connect", "--timeout", "0.2", "--json")
    plain = command("check", "orders.py")

    assert (done.returncode, as_json.returncode, plain.returncode) == (3, 3, 0)
    assert "  shop: reached: orders.jsonl can be read\n" in done.stdout
    assert "  plain: not tried: not supported by Plain\n" in done.stdout
    assert (
        "  silent: failed: no answer within 0.2 s (check the address and the network; --timeout gives it longer)\n"
        in done.stderr
    )
    assert "  wrong: failed: ValueError: no such \\x1b[31mhost\n" in done.stderr
    statuses = {each["node"]: each["status"] for each in json.loads(as_json.stdout)["connections"]}
    assert statuses == {
        "shop": "reached", "silent": "failed", "wrong": "failed", "plain": "not tried", "out": "reached"
    }  # fmt: skip
    assert "reached" not in plain.stdout


def test_what_can_be_reached_is_ok_and_nothing_is_made(command: "Command") -> None:
    command.write(PROBED)
    (command.folder / "orders.jsonl").write_text("{}")
    before = sorted(each.name for each in command.folder.iterdir())
    done = command("check", "orders.py", "--connect", "--pipeline", "copy")

    assert (done.returncode, done.stderr) == (0, "")
    assert "out: reached: new/out.jsonl can be created" in done.stdout
    assert [name for name in sorted(each.name for each in command.folder.iterdir()) if name != "__pycache__"] == [
        name for name in before if name != "__pycache__"
    ]

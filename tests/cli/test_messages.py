"""What the commands say: which line of the user's code, which line of a file, and what to do about it."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import CommandInside

STATE = ("--state", ".conduit/state")
HEAD = """\
import json
from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Source
"""
PIPELINE = """
pipeline = Pipeline(
    "prices",
    sources=[Source("orders", {source})],
    processors=[{processor}],
    destinations=[Destination("out", {destination})],
    dead_letters={dead_letters},
    recovery=Recovery(retries=0),
)
"""
WRITE_OUT = 'file.Destination(path="out.jsonl", format="json")'
READ_ORDERS = 'file.Source(path="orders.jsonl", format="json")'
CENTS = """
def cents(record):
    record.payload["cents"] = parse(record.payload["price"])
    return record

def parse(price):
    return json.loads(price)["cents"]
"""


def prices(
    inside: "CommandInside",
    *,
    functions: str = CENTS,
    processor: str = "cents",
    dead_letters: str = "DeadLetters.keep()",
    source: str = READ_ORDERS,
    destination: str = WRITE_OUT,
) -> None:
    """Write a pipeline, and five orders of which the third and the fourth cannot be parsed."""
    nodes = {"source": source, "processor": processor, "destination": destination, "dead_letters": dead_letters}
    inside.write(HEAD + functions + PIPELINE.format(**nodes))
    texts = ['{"cents": 3}', '{"cents": 4}', "odd", "", '{"cents": 5}']
    (inside.folder / "orders.jsonl").write_text("".join(json.dumps({"price": text}) + "\n" for text in texts))


def test_the_line_of_the_users_code_that_refused_is_named_wherever_its_letter_is(inside: "CommandInside") -> None:
    prices(inside)
    done = inside("run", "orders.py")
    letters = json.loads(inside("dlq", "list", *STATE, "--json").stdout)["letters"]
    shown = inside("dlq", "show", letters[0]["id"], *STATE)
    as_json = json.loads(inside("dlq", "show", letters[0]["id"], *STATE, "--json").stdout)

    place = "orders.py:10 in parse"
    assert done.returncode == 0
    assert f"line # column # (char #), see {place}; they are kept in the state" in done.stderr
    assert f"\n  see {place}\n" in shown.stdout
    assert as_json["history"][0]["location"] == f"{inside.folder}/{place}"


def test_the_line_of_the_users_code_is_in_the_advice_of_a_run_that_stops(inside: "CommandInside") -> None:
    prices(inside, dead_letters="DeadLetters.stop()")
    done = inside("run", "orders.py")

    assert done.returncode == 1
    assert "\n  see orders.py:10 in parse; correct " in done.stderr


def test_the_line_of_a_condition_that_raises_is_named(inside: "CommandInside") -> None:
    functions = "\ndef wanted(record):\n    return record.payload['weight'] > 3\n"
    destination, letters = f"{WRITE_OUT}, when=wanted", "DeadLetters.drop(window_size=0)"
    prices(inside, functions=functions, processor="", destination=destination, dead_letters=letters)
    done = inside("run", "orders.py")

    assert "out: KeyError: 'weight', see orders.py:6 in wanted; they were dropped" in done.stderr


def test_the_line_of_a_connector_of_the_user_is_named(inside: "CommandInside") -> None:
    functions = "\nfrom ends import Lines\nclass Torn(Lines):\n    async def open(self):\n        {}['page']\n"
    prices(inside, functions=functions, processor="", destination='Torn(path="out.txt")')
    done = inside("run", "orders.py")

    assert "out: open failed: KeyError: 'page'" in done.stderr
    assert "\n  see orders.py:8 in Torn.open\n" in done.stderr


def test_no_line_is_named_for_refusals_of_our_own_processors(inside: "CommandInside") -> None:
    functions = "\nfrom conduit_processors import json as json_processors\n"
    prices(inside, functions=functions, processor='json_processors.Decode(field=".Payload.After.price")')
    done = inside("run", "orders.py")

    assert "2 dead letters of 5 records read: " in done.stderr
    assert ", see " not in done.stderr

"""Processors, destinations and sources that refuse, raise or break their contract."""

from collections.abc import Sequence

import pytest
from command_folder import KEEP, Folder, in_order
from warm_python import run_command

CROWD = """
def crowd(record):
    if record.payload["n"] % 3 == 0:
        raise ValueError("three is a crowd")
    return record

async def keep(letter):
    with open("kept.jsonl", "a") as kept:
        kept.write(json.dumps(letter.record.payload.after) + "\\n")

def keep_slowly(letter):
    with open("kept.jsonl", "a") as kept:
        kept.write(json.dumps(letter.record.payload.after) + "\\n")

def fail(letter):
    raise OSError("the shelf is full")
"""


NUMBERS = list(range(1, 11))


CROWDS = [3, 6, 9]


OTHERS = [number for number in NUMBERS if number not in CROWDS]


def test_refused_records_are_kept_by_a_dead_letter_destination(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=KEEP, head=CROWD)

    assert folder.run().has(0)
    assert folder.arrived() == OTHERS
    assert folder.letters() == [("crowd", {"n": number}) for number in CROWDS]
    assert {letter["error"] for letter in folder.lines("dead.jsonl")} == {"ValueError: three is a crowd"}


@pytest.mark.parametrize("handler", ["keep", "keep_slowly"])
def test_refused_records_are_given_to_a_function(folder: Folder, handler: str) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=f"DeadLetters({handler})", head=CROWD)

    assert folder.run().has(0)
    assert (folder.arrived(), folder.arrived("kept.jsonl")) == (OTHERS, CROWDS)


def test_dropped_records_are_each_logged(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters='DeadLetters("drop")', head=CROWD)
    answer = folder.run()

    assert answer.has(0)
    assert answer.stderr.count("dropped a record of in that crowd refused: ValueError: three is a crowd") == 3
    assert "3 dead letters" in answer.stdout
    assert folder.arrived() == OTHERS


def test_a_processor_that_raises_shows_its_line_to_those_who_debug(folder: Folder) -> None:
    folder.numbers(3)
    folder.pipeline(processors="[crowd]", dead_letters=KEEP, head=CROWD)
    said = run_command("run", "p.py", "--debug", cwd=folder.path).stderr

    assert 'p.py", line 8, in crowd' in said
    assert "ValueError: three is a crowd" in said


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ('DeadLetters("stop")', ("crowd refused a record: ValueError: three is a crowd", "dead_letter.not_allowed")),
        ("DeadLetters(fail)", ("could not be stored: OSError: the shelf is full", "three is a crowd", "repair the")),
    ],
)
def test_a_refused_record_that_nobody_takes_stops_the_pipeline_and_is_there_next_time(
    folder: Folder, handler: str, words: Sequence[str]
) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=handler, head=CROWD)
    stopped = folder.run()
    folder.pipeline()
    resumed = folder.run()

    assert stopped.has(1, "p: error in crowd: ", *words)
    assert resumed.has(0)
    # What came after the first refused record may have arrived before it was known that nobody takes it.
    assert sorted(in_order(folder.arrived(), repeats_max=5)) == NUMBERS


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("5", "returned int: return a Record, None or a list of Records, or raise"),
        ('{"n": 1}', "returned dict: return a Record"),
        ("[record, 5]", "returned int: return a Record"),
        ("(record, record)", "returned tuple: return a Record"),
    ],
)
def test_a_processor_that_returns_something_else_is_stopped_and_named(folder: Folder, result: str, words: str) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[step]", dead_letters=KEEP, head=f"def step(record):\n    return {result}\n")
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, f"p: error: step: {words}", "[contract.broken]")
    assert (folder.arrived(), folder.letters()) == ([], [])
    assert folder.run().has(0)
    assert folder.arrived() == NUMBERS


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "must return one result per record of the batch, not NoneType"),
        ("list(batch)[1:]", "returned 9 results for a batch of 10 records"),
    ],
)
def test_a_batch_processor_that_forgets_records_is_stopped_and_named(folder: Folder, result: str, words: str) -> None:
    folder.numbers(*NUMBERS)
    step = f"@processor(batch=True)\ndef step(batch):\n    return {result}\n"
    folder.pipeline(processors="[step]", dead_letters=KEEP, head=step)
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, f"p: error: step: {words}")
    assert folder.run().has(0)
    assert folder.arrived() == NUMBERS


# Destinations that refuse.


PICKY = """
class Picky(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        refused = {index: "no threes" for index, record in enumerate(batch) if record.payload["n"] % 3 == 0}
        with open("out.jsonl", "a") as out:
            out.writelines(json.dumps(r.payload.after) + "\\n" for i, r in enumerate(batch) if i not in refused)
        return refused

class Broken(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        raise RuntimeError("no such luck")

class Confused(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        return {99: "who?"}

class Silent(sdk.SourceConnector[sdk.Options]):
    def read(self, n):
        return []
"""


def test_records_that_a_destination_refuses_are_dead_letters(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(destination="Picky()", dead_letters=KEEP, head=PICKY)

    assert folder.run().has(0)
    assert folder.arrived() == OTHERS
    assert folder.letters() == [("out", {"n": number}) for number in CROWDS]


@pytest.mark.parametrize(
    ("destination", "dead_letters", "words"),
    [
        ("Picky()", "None", "error in out: out refused a record: no threes [dead_letter.not_allowed]"),
        ("Broken()", KEEP, "error: out: write failed: RuntimeError: no such luck [node.failed]"),
        ("Confused()", KEEP, "error: out: write() refused record 99 of a batch of 10 [contract.broken]"),
        ("Picky()", "DeadLetters(Broken())", "a dead letter could not be stored: RuntimeError: no such luck; out had"),
    ],
)
def test_a_destination_that_fails_stops_the_pipeline_and_another_gets_everything(
    folder: Folder, destination: str, dead_letters: str, words: str
) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(destination=destination, dead_letters=dead_letters, head=PICKY)
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, "p: ", words)
    assert folder.run().has(0)
    assert sorted(in_order(folder.arrived(), repeats_max=5)) == NUMBERS


def test_a_source_that_breaks_its_contract_is_named(folder: Folder) -> None:
    folder.pipeline(source="Silent()", head=PICKY)

    assert folder.run().has(1, "p: error: in: read() returned nothing: wait for a record", "[contract.broken]")

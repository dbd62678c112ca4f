"""Pipelines chained through journals are exactly-once from first to last, whatever moment they are killed at."""

from pathlib import Path

import pytest
from conduit_connectors import journal
from warm_python import COMMAND, WarmPython, run_warm

from conduit_py.sdk import EndOfSource
from conduit_py.testing.crash import AT_RANDOM, run_with_kills

RECORDS = 40_000
KILLS = 18
PIPELINES = f"""
from conduit_connectors import generator, journal
from conduit_py import Destination, Pipeline, Source, processor
from conduit_py import TransactionLimits

small = TransactionLimits(max_records=300)


@processor
def double(record):
    record.payload["twice"] = 2 * record.payload["n"]
    return record


first = Pipeline(
    "first",
    sources=[Source("numbers", generator.Source(count={RECORDS}, fields={{"n": "index"}}), batch_size=100)],
    destinations=[Destination("a", journal.Destination(path="a", segment_size=100_000))],
    delivery="exactly_once",
    transaction=small,
)
second = Pipeline(
    "second",
    sources=[Source("a", journal.Source(path="a", until="end"), batch_size=70)],
    processors=[double],
    destinations=[
        Destination("b", journal.Destination(path="b", segment_size=100_000)),
        Destination("c", journal.Destination(path="c")),
    ],
    delivery="exactly_once",
    transaction=small,
)
"""
POINTS = [
    "transaction.before_stage",
    "transaction.after_apply",
    "journal.before_write",
    "journal.after_write",
    "journal.before_sync",
    "journal.after_sync",
    "store.before_commit",
    "store.after_commit",
]


def command(*more: str) -> list[str | Path]:
    return [COMMAND, "run", "chain.py", "--state", "state", *more]


def read(path: Path) -> list[dict[str, int]]:
    source = journal.Source(path=path, until="end")
    source.open(None)
    found = []
    try:
        while True:
            records = source.read(5000)
            assert isinstance(records, list)
            found += [record.payload.after for record in records]
    except EndOfSource:
        return found  # type: ignore[return-value]


@pytest.mark.slow
def test_a_cascade_through_journals_survives_kills_exactly_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(PIPELINES)
    # The first pipeline needs something of `a` to be there when the second opens it.
    journal_of_nothing = journal.Destination(path=tmp_path / "a")
    journal_of_nothing.open()
    journal_of_nothing.teardown()

    report = run_with_kills(
        command(),
        kills_max=KILLS,
        points=POINTS,
        delay_max_seconds=0.5,
        seconds_max=250,
        directory=tmp_path,
        popen=WarmPython,
    )
    # The second pipeline may have come to what was the end of `a` before the first had written it all.
    run_warm(command(), cwd=tmp_path, check=True)

    assert report.kills[AT_RANDOM] > 0
    assert report.kills.total() >= KILLS // 2
    expected = [record["n"] for record in read(tmp_path / "a")]
    assert expected == list(range(expected[0], expected[0] + RECORDS))
    for name in ("b", "c"):
        assert read(tmp_path / name) == [{"n": number, "twice": 2 * number} for number in expected]

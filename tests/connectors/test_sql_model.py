"""Random records into a table that must grow with them: what was not refused is there, with every digit."""

import json
import tempfile
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from builders import batch_of
from conduit_connectors.sql.destination import SqlDestination
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sql_world import World, postgres_world, sqlite_world

from conduit_py import Operation, Payload, Record
from conduit_py.sdk import metadata

NAMES = ["a", "b", "c"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**15, 2**31, 2**53 + 1, -(2**63)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=3),
    st.sampled_from(["", "abc", "007", "1.50", "true", "\N{SNOWMAN}"]),
    st.fixed_dictionaries({"k": st.integers(0, 9)}),
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES)
IDS = st.integers(1, 3)


def upsert(id: int, fields: dict[str, Any]) -> Record:
    return Record.of({"id": id} | fields, key={"id": id})


def update(id: int, fields: dict[str, Any]) -> Record:
    """One that leaves alone what it does not have."""
    record = Record(operation=Operation.UPDATE, key={"id": id}, payload=Payload(after={"id": id} | fields))
    record.metadata = {metadata.UNCHANGED_FIELDS: json.dumps([name for name in NAMES if name not in fields])}
    return record


CHANGES = st.one_of(
    st.builds(upsert, IDS, FIELDS),
    st.builds(update, IDS, FIELDS),
    st.builds(lambda id: Record(operation=Operation.DELETE, key={"id": id}), IDS),
    st.just(Record(operation=Operation.DELETE, metadata={metadata.TRUNCATE: "true"})),
)
BATCHES = st.lists(st.lists(CHANGES, min_size=1, max_size=6), min_size=1, max_size=5)
POLICIES = st.fixed_dictionaries(
    {
        "on_new_field": st.sampled_from(["refuse", "add", "ignore"]),
        "on_type": st.sampled_from(["refuse", "widen", "text"]),
    }
)
MODES = st.sampled_from(["each write", "home", "staged"])

Rows = dict[int, dict[str, Any]]


def apply(rows: Rows, record: Record) -> None:
    """The naive model of a table in which nothing is ever refused or changed."""
    after: Any = record.payload.after
    if record.operation is not Operation.DELETE:
        if record.operation is Operation.UPDATE and metadata.UNCHANGED_FIELDS in record.metadata:
            partial = json.loads(record.metadata[metadata.UNCHANGED_FIELDS])
            if partial and after["id"] not in rows:
                return
        rows.setdefault(after["id"], {}).update(after)
    elif record.key is None:
        rows.clear()
    else:
        assert isinstance(record.key, dict)
        rows.pop(record.key["id"], None)


def is_same(stored: Any, given: Any) -> bool:
    """True if a stored value is the given one: the same number, or a text for it with all of its digits."""
    if isinstance(given, bool):
        # SQLite has no booleans: in a column of integers, which may become text, they are 0 and 1.
        return stored in (given, int(given), str(given).lower(), str(int(given)))
    if isinstance(given, dict):
        return stored == given or (isinstance(stored, str) and json.loads(stored) == given)
    if isinstance(stored, bool):
        # PostgreSQL reads a text as a value of its column's type.
        return stored is given or given == str(stored).lower()
    if given is None:
        return stored is None
    if isinstance(given, str) and isinstance(stored, str):
        return stored == given
    if stored in ("false", "true"):
        # And 0 and 1 fit a column of booleans.
        return bool(given == (stored == "true"))
    try:
        # A number in a column of text, and a text that was read as the number of its column.
        one, other = (Decimal(repr(each) if isinstance(each, float) else each) for each in (stored, given))
    except (InvalidOperation, TypeError):
        return False
    # The exact value of a float may have more digits than it is written with.
    return one == other or (isinstance(given, float) and float(one) == given)


def check(world: World, mode: str, batches: list[list[Record]], policy: dict[str, str]) -> None:
    destination = world.opened(table="t", mode="upsert", **policy)
    if mode != "each write":
        destination.claim("p", 1)
    if mode == "staged":
        destination.begin("p", 1, [])
    expected: Rows = {}
    for records in batches:
        refused = destination.write(batch_of(*(record.copy() for record in records)))
        event(f"{policy} refused: {bool(refused)}")
        # Progress: nothing of this is refused where everything may be changed.
        assert not refused or policy != {"on_new_field": "add", "on_type": "text"}, refused
        for index, record in enumerate(records):
            if index not in refused:
                apply(expected, record)
    commit(destination, mode)

    columns = list(world.types())
    stored = {row["id"]: row for row in world.dicts("t")}
    assert stored.keys() == expected.keys()
    for id, fields in expected.items():
        for name in columns:
            assert is_same(stored[id][name], fields.get(name)), (name, stored[id], fields)
        if policy["on_new_field"] != "ignore":
            assert [name for name, value in fields.items() if value is not None and name not in columns] == []


def commit(destination: SqlDestination[Any], mode: str) -> None:
    if mode == "home":
        destination.commit(b"done")
    if mode == "staged" and (intent := destination.stage()):
        destination.apply(intent)
    destination.teardown()


@settings(max_examples=150, deadline=None)
@given(BATCHES, POLICIES, MODES)
def test_in_sqlite(batches: list[list[Record]], policy: dict[str, str], mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(sqlite_world(Path(folder) / "data.db"), mode, batches, policy)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, POLICIES, MODES)
def test_in_postgres(postgres: str, batches: list[list[Record]], policy: dict[str, str], mode: str) -> None:
    world = postgres_world(postgres)
    world.run("DROP TABLE IF EXISTS t", "DROP TABLE IF EXISTS conduit_checkpoint")
    check(world, mode, batches, policy)

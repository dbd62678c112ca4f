"""Processors that take payloads by their signature do what those that take records do."""

import dataclasses
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from conduit_connectors import file, memory
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Record, Source, processor, run, sdk
from conduit_py.batch import Batch, Span
from conduit_py.payloads import Columns, Payloads, join
from conduit_py.positions import Positions
from conduit_py.record import Operation
from conduit_py.sdk import RecordRefused, State


class Order(msgspec.Struct):
    id: int
    amount: float
    note: str | None = None
    cents: int = 0


class Plan(msgspec.Struct):
    """What to do with an order, by its id."""

    drop: set[int]
    split: set[int]
    refuse: set[int]


def by_records(plan: Plan) -> list[Any]:
    @processor
    def cents(record: Record) -> Record:
        record.payload["cents"] = round(record.payload["amount"] * 100)
        return record

    @processor
    def choose(record: Record) -> Record | list[Record] | None:
        number = record.payload["id"]
        if number in plan.refuse:
            raise RecordRefused(f"order {number} is refused")
        if number in plan.split:
            return [record.copy(), record.copy()]
        return None if number in plan.drop else record

    return [cents, choose]


def by_dicts(plan: Plan) -> list[Any]:
    @processor
    def cents(order: dict[str, Any]) -> dict[str, Any]:
        order["cents"] = round(order["amount"] * 100)
        return order

    @processor
    def choose(order: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]] | None:
        if order["id"] in plan.refuse:
            raise RecordRefused(f"order {order['id']} is refused")
        if order["id"] in plan.split:
            return [dict(order), dict(order)]
        return None if order["id"] in plan.drop else order

    return [cents, choose]


def by_types(plan: Plan) -> list[Any]:
    @processor
    def cents(order: Order) -> Order:
        order.cents = round(order.amount * 100)
        return order

    @processor
    def choose(order: Order) -> Order | list[Order] | None:
        if order.id in plan.refuse:
            raise RecordRefused(f"order {order.id} is refused")
        if order.id in plan.split:
            return [order, order]
        return None if order.id in plan.drop else order

    return [cents, choose]


def by_batches(plan: Plan) -> list[Any]:
    @processor(batch=True)
    def cents(orders: list[Order]) -> list[Order]:
        for order in orders:
            order.cents = round(order.amount * 100)
        return orders

    @processor(batch=True)
    def choose(orders: list[dict[str, Any]]) -> list[Any]:
        results: list[Any] = []
        for order in orders:
            number = order["id"]
            refusal = RecordRefused(f"order {number} is refused")
            pieces = [dict(order), dict(order)]
            kept = None if number in plan.drop else order
            results.append(refusal if number in plan.refuse else pieces if number in plan.split else kept)
        return results

    return [cents, choose]


def by_batches_of_records(plan: Plan) -> list[Any]:
    [cents, choose] = by_records(plan)

    @processor(batch=True)
    def both(batch: Batch) -> list[Any]:
        results: list[Any] = []
        for record in batch:
            try:
                results.append(choose(cents(record)))
            except RecordRefused as error:
                results.append(error)
        return results

    both.name = "choose"
    return [both]


def with_everything_around(plan: Plan) -> list[Any]:
    """Conditions, workers and async functions use records, so payloads become records and payloads again."""
    cents, choose = by_types(plan)

    async def same(order: dict[str, Any]) -> dict[str, Any]:
        return order

    return [processor(when=lambda record: True)(cents.function), processor(workers=2)(same), choose]


class Outcome(msgspec.Struct):
    written: list[bytes]
    letters: list[tuple[str, str, bytes, Any]]
    status: str


def run_style(folder: Path, lines: list[bytes], processors: list[Any], batch_size: int) -> Outcome:
    letters: list[DeadLetter] = []
    source = folder / "in.jsonl"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    target = folder / f"out-{random.random()}.jsonl"
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", file.Source(path=source, format="json"), batch_size=batch_size)],
        processors=processors,
        destinations=[Destination("out", file.Destination(path=target, format="json"))],
        dead_letters=DeadLetters(letters.append, window_size=0),
    )
    ended = run(pipeline, state=None)
    shown = [(each.error, each.node, each.position, each.record.payload.after) for each in letters]
    return Outcome(target.read_bytes().splitlines(), shown, str(ended.status))


def line_of(order: dict[str, Any]) -> bytes:
    return msgspec.json.encode(order)


ORDERS = st.builds(
    lambda number, cents, note: {"id": number, "amount": cents / 4, "note": note},
    st.integers(0, 30),
    st.integers(0, 4000),
    st.none() | st.text(alphabet='a:é"\\ ', max_size=5),
)
SOME = st.sets(st.integers(0, 30), max_size=8)
STYLES = (by_dicts, by_types, by_batches, by_batches_of_records, with_everything_around)


@given(orders=st.lists(ORDERS, max_size=40), drop=SOME, split=SOME, refuse=SOME, batch_size=st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_every_style_gives_the_same_output_letters_and_positions(
    tmp_path_factory: pytest.TempPathFactory,
    orders: list[dict[str, Any]],
    drop: set[int],
    split: set[int],
    refuse: set[int],
    batch_size: int,
) -> None:
    plan, lines = Plan(drop, split, refuse), [line_of(order) for order in orders]
    folder = tmp_path_factory.mktemp("styles")

    expected = run_style(folder, lines, by_records(plan), batch_size)

    for style in STYLES:
        assert run_style(folder, lines, style(plan), batch_size) == expected, style.__name__


BAD = (
    (b'{"id": 1, "amount": "much"}', "payload.after is no Order: Expected `float`, got `str` - at `$.amount`"),
    (b'{"id": 1}', "payload.after is no Order: Object missing required field `amount`"),
    (b'{"id": 1, "amount": 1.5, "colour": 7}', "payload.after is no Order: Object contains unknown field `colour`"),
)


@pytest.mark.parametrize(("line", "reason"), BAD)
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_record_that_does_not_fit_is_a_letter_with_the_record_as_it_was_read(
    tmp_path: Path, line: bytes, reason: str, neighbours: int
) -> None:
    good = [b'{"id": %d, "amount": 0.5}' % number for number in range(2, 2 + neighbours)]

    outcome = run_style(tmp_path, [*good, line, *good], by_types(Plan(set(), set(), set())), 10)

    [(error, node, _, record)] = outcome.letters
    assert (error, node, record) == (reason, "cents", msgspec.json.decode(line))
    assert len(outcome.written) == 2 * neighbours


def test_a_bad_line_does_not_change_what_its_neighbours_are_decoded_into(tmp_path: Path) -> None:
    class Price(msgspec.Struct):
        price: Decimal

    @processor
    def same(price: Price) -> Price:
        return price

    for lines in ([b'{"price": 1.10}'], [b'{"price": 1.10}', b"no json"]):
        assert run_style(tmp_path, lines, [same], 10).written == [b'{"price":"1.10"}']


@dataclasses.dataclass
class OrderClass:
    id: int
    amount: float
    note: str | None = None


class OrderModel(pydantic.BaseModel):
    id: int
    amount: float
    note: str | None = None


class OrderDict(TypedDict):
    id: int
    amount: float


class Wrapped(msgspec.Struct):
    inner: list[Order]


@pytest.mark.parametrize("kind", [Order, OrderClass, OrderModel, OrderDict], ids=lambda kind: kind.__name__)
def test_a_field_that_the_type_does_not_have_is_refused_and_never_dropped(tmp_path: Path, kind: type) -> None:
    def keep(order: Any) -> Any:
        return order

    keep.__annotations__["order"] = kind

    good, bad = b'{"id":1,"amount":2.5}', b'{"id":1,"amount":2.5,"colour":"red"}'
    outcome = run_style(tmp_path, [good, bad], [processor(keep)], 10)

    assert [msgspec.json.decode(line)["id"] for line in outcome.written] == [1]
    [(error, _, _, record)] = outcome.letters
    assert "colour" in error
    assert record == msgspec.json.decode(bad)


def test_a_field_that_a_type_inside_does_not_have_is_refused_too(tmp_path: Path) -> None:
    @processor
    def keep(wrapped: Wrapped) -> Wrapped:
        return wrapped

    bad = b'{"inner":[{"id":1,"amount":2.5},{"id":1,"amount":2.5,"colour":"red"}]}'
    outcome = run_style(tmp_path, [bad], [keep], 10)

    assert outcome.written == []
    assert outcome.letters[0][0] == "payload.after is no Wrapped: Object contains unknown field `$.inner[1].colour`"


def test_a_model_that_allows_extra_fields_keeps_them(tmp_path: Path) -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        id: int

    @processor
    def keep(order: Open) -> Open:
        return order

    assert run_style(tmp_path, [b'{"id": 1, "colour": "red"}'], [keep], 10).written == [b'{"id":1,"colour":"red"}']


def test_metadata_and_state_are_further_parameters(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    @processor
    def note(order: dict[str, Any], metadata: dict[str, str]) -> dict[str, Any]:
        metadata["seen"] = "yes"
        return {**order, "file": metadata["file"]}

    @processor
    def count(order: dict[str, Any], state: State) -> dict[str, Any]:
        state.put("n", state.get("n", 0) + 1)
        return {**order, "n": state.get("n")}

    records = [Record.of({"id": number}) for number in range(3)]
    for record in records:
        record.metadata = {"file": "a"}
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", memory.Source(records=records))],
        processors=[note, count],
        destinations=[Destination("out", file.Destination(path=out))],
        delivery="exactly_once",
    )
    run(pipeline, state=tmp_path / "state")

    written = [Record.from_json(line) for line in out.read_bytes().splitlines()]
    assert [record.payload.after for record in written] == [{"id": n, "file": "a", "n": n + 1} for n in range(3)]
    assert {record.metadata["seen"] for record in written} == {"yes"}


def takes_number(order: int) -> None: ...
def takes_unknown(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def takes_metadata_of_many(orders: list[Order], metadata: dict[str, str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "settings", "text"),
    [
        (takes_number, {}, "takes int, which no record can become"),
        (takes_unknown, {}, "has a type that cannot be found: order: Missing"),
        (takes_metadata_of_many, {"batch": True}, "is for functions that take one record"),
    ],
)
def test_a_signature_that_cannot_work_is_a_problem(
    function: Callable[..., Any], settings: dict[str, Any], text: str
) -> None:
    decorate: Any = processor(**settings)
    [problem] = decorate(function).problems

    assert text in problem.message


def test_a_batch_of_payloads_makes_records_only_when_they_are_asked_for() -> None:
    columns = Columns(keys=[b"a", b"b"], operations=[Operation.UPDATE, Operation.DELETE], befores=[None, {"x": 0}])
    reading = Payloads([{"x": 1}, {"x": 2}], Positions(b"at:%d", range(5, 7)), dict, columns)
    span = Span("p", "s", 0, reading.positions)
    batch = Batch.of_payloads(span, reading.payloads, range(2), None, dict, columns)

    one = batch.record(1)
    assert not batch.holds_records
    assert batch.records == list(reading)
    assert batch.holds_records
    assert (one.position, one.key, one.operation, one.payload.before) == (b"at:6", b"b", "delete", {"x": 0})
    assert [record.metadata for record in batch.records] == [{}, {}]
    assert batch.records[0].metadata is not batch.records[1].metadata


def test_typed_payloads_of_two_branches_do_not_share_their_changes(tmp_path: Path) -> None:
    out: dict[str, list[Record]] = {"a": [], "b": []}

    @processor
    def rename(order: Order) -> Order:
        order.note = "changed"
        return order

    (tmp_path / "in").write_bytes(b'{"id": 1, "amount": 1.5}\n')
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", file.Source(path=tmp_path / "in", format="json"))],
        destinations=[
            Destination("a", memory.Destination(into=out["a"]), processors=[rename]),
            Destination("b", memory.Destination(into=out["b"])),
        ],
    )
    run(pipeline, state=None)

    assert [each.payload.after for each in out["a"]] == [{"id": 1, "amount": 1.5, "note": "changed", "cents": 0}]
    assert [each.payload.after for each in out["b"]] == [{"id": 1, "amount": 1.5}]


class WrongCount(sdk.SourceConnector[sdk.Options]):
    async def read(self, n: int) -> Payloads:
        return Payloads([{}, {}], [b"1"])


class Repeated(sdk.SourceConnector[sdk.Options]):
    async def read(self, n: int) -> Payloads:
        return Payloads([{}, {}], Positions(b"%d", [1, 1]))


@pytest.mark.parametrize(
    ("source", "text"), [(WrongCount, "2 payloads with 1 positions"), (Repeated, "a position twice")]
)
def test_a_source_that_breaks_the_contract_of_payloads_fails(source: Any, text: str) -> None:
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", source())],
        destinations=[Destination("out", memory.Destination(into=[]))],
    )
    outcome = run(pipeline, state=None)

    assert outcome.error is not None
    assert text in str(outcome.error)


def test_joined_positions_ascend_only_if_both_do_and_the_second_begins_behind_the_first() -> None:
    first, behind, before = (Positions(b"%d", numbers, ascending=True) for numbers in ([3, 5], [6, 9], [5, 9]))

    def joined(later: Positions) -> Positions:
        both = join([Payloads([b"a", b"b"], first), Payloads([b"c", b"d"], later)])
        assert isinstance(both, Payloads)
        assert isinstance(both.positions, Positions)
        return both.positions

    assert list(joined(behind)) == [b"3", b"5", b"6", b"9"]
    for later, ascending in ((behind, True), (before, False), (Positions(b"%d", [6, 9]), False)):
        assert joined(later).ascending is ascending

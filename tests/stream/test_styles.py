"""Random pipelines give the same output, dead letters and positions in every style of writing processors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
import trio
from conduit_connectors import file
from drawn_pipelines import Kept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    Retry,
    Source,
    Status,
    processor,
)
from conduit_py.batch import Batch
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import RecordRefused
from conduit_py.store.memory import MemoryStore

T = TypeVar("T")


class Order(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    amount: float
    note: str | None
    cents: int


class Step(msgspec.Struct, frozen=True):
    """What one processor does to the orders whose id has this remainder, and how it runs."""

    action: Literal["set", "drop", "split", "refuse", "raise", "fail once"]
    remainder: int
    when: int | None
    """Only orders with this parity pass through it."""
    workers: int
    batch: bool
    in_place: bool
    """Most orders that go on are those that came, changed in place."""


class Deed:
    """Does what a step says, to the fields of one order. It fails at the first attempt of some orders, if it must."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._failed: set[tuple[Any, ...]] = set()

    def __call__(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the orders that go on."""
        step = self.step
        if order["id"] % 4 != step.remainder:
            return [order]
        match step.action:
            case "drop":
                return []
            case "split":
                return [order, {**order, "note": "piece"}]
            case "refuse":
                raise RecordRefused(f"order {order['id']} is refused")
            case "raise":
                raise ValueError(f"order {order['id']}")
            case "fail once" if (identity := tuple(order.values())) not in self._failed:
                self._failed.add(identity)
                raise OSError("once")
        return [{**order, "cents": round(order["amount"] * 100)}]

    def keeps(self, orders: list[dict[str, Any]]) -> bool:
        """Return True if the order that came goes on itself."""
        return self.step.in_place and len(orders) == 1 and orders[0]["id"] % 5 != 0


def refuse_misfit(fields: Any) -> None:
    """What the runtime does for processors that take a type."""
    try:
        msgspec.convert(fields, Order)
    except msgspec.ValidationError as error:
        raise RecordRefused(f"payload.after is no Order: {error}") from None


def by_records(deed: Deed) -> Callable[..., Any]:
    def one(record: Record) -> Record | list[Record] | None:
        fields: Any = record.payload.after
        refuse_misfit(fields)
        try:
            orders = deed(fields)
        except OSError:
            fields["id"] = -1
            raise
        if deed.keeps(orders):
            record.payload.after = orders[0]
            return record
        records = [record.copy() for _ in orders]
        for each, order in zip(records, orders, strict=True):
            each.payload.after = dict(order)
        return _as_returned(records)

    def some(batch: Batch) -> list[Any]:
        return _each(one, list(batch))

    return some if deed.step.batch else one


def by_dicts(deed: Deed) -> Callable[..., Any]:
    def one(order: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]] | None:
        refuse_misfit(order)
        try:
            orders = deed(order)
        except OSError:
            order["id"] = -1
            raise
        if deed.keeps(orders):
            order.update(orders[0])
            return order
        return _as_returned([dict(each) for each in orders])

    def some(orders: list[dict[str, Any]]) -> list[Any]:
        return _each(one, orders)

    return some if deed.step.batch else one


def by_types(deed: Deed) -> Callable[..., Any]:
    def one(order: Order) -> Order | list[Order] | None:
        try:
            orders = deed(msgspec.structs.asdict(order))
        except OSError:
            order.id = -1
            raise
        if deed.keeps(orders):
            order.cents = orders[0]["cents"]
            return order
        return _as_returned([Order(**each) for each in orders])

    def some(orders: list[Order]) -> list[Any]:
        return _each(one, orders)

    return some if deed.step.batch else one


def _as_returned(results: list[T]) -> T | list[T] | None:
    """None filters, several are pieces."""
    return results if len(results) > 1 else results[0] if results else None


def _each(one: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """A batch function refuses a value by returning the error in its place."""
    results: list[Any] = []
    for value in values:
        try:
            results.append(one(value))
        except RecordRefused as refusal:
            results.append(refusal)
    return results


STYLES = (by_records, by_dicts, by_types)


def make_node(number: int, step: Step, style: Callable[[Deed], Callable[..., Any]]) -> Processor:
    when = (lambda record: record.payload["id"] % 2 == step.when) if step.when is not None else None
    retry = Retry(attempts=20, delay_seconds=0.001) if step.action == "fail once" else None
    function = style(Deed(step))
    made: Any = processor(batch=True)(function) if step.batch else processor(function)
    return Processor(f"step-{number}", made, when=when, workers=step.workers, retry=retry)


class Outcome(msgspec.Struct):
    """What a pipeline led to."""

    written: list[bytes]
    letters: list[dict[str, Any]]
    positions: dict[str, bytes]


async def run_pipeline(folder: Path, processors: list[Processor], batch_size: int, delivery: Any) -> Outcome:
    letters: list[Any] = []
    target = folder / "out.jsonl"
    target.unlink(missing_ok=True)
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"), batch_size=batch_size)],
        processors=processors,
        destinations=[Destination("out", file.Destination(path=target, format="json"))],
        dead_letters=DeadLetters(Kept(into=letters), window_size=0),
        delivery=delivery,
    )
    store = MemoryStore()
    supervisor = Supervisor(pipeline, store)
    await supervisor.run()
    assert supervisor.state.status is Status.COMPLETED, supervisor.state
    shown = [{name: each[name] for name in each if name not in ("at", "failures")} for each in letters]
    return Outcome(target.read_bytes().splitlines(), shown, dict(await store.positions("orders")))


ORDERS = st.builds(
    lambda number, quarters, note: {"id": number, "amount": quarters / 4, "note": note, "cents": 0},
    st.integers(0, 30),
    st.integers(0, 4000),
    st.none() | st.text(alphabet='a:é"\\ ', max_size=5),
)
MISFITS = st.builds(
    lambda number, fields: {"id": number} | fields,
    st.integers(0, 30),
    st.sampled_from(
        [
            {"amount": "much", "note": None, "cents": 0},
            {"amount": 1.5},
            {"amount": 1.5, "note": "", "cents": 0, "colour": 7},
        ]
    ),
)
LINES = st.lists(st.one_of(ORDERS, ORDERS, ORDERS, MISFITS).map(msgspec.json.encode), max_size=30)
STEPS = st.builds(
    Step,
    action=st.sampled_from(["set", "drop", "split", "refuse", "raise", "fail once"]),
    remainder=st.integers(0, 3),
    when=st.none() | st.integers(0, 1),
    workers=st.sampled_from([1, 1, 3]),
    batch=st.booleans(),
    in_place=st.booleans(),
).map(
    lambda step: msgspec.structs.replace(step, batch=step.batch and step.action in ("set", "drop", "split", "refuse"))
)


@given(
    lines=LINES,
    steps=st.lists(st.tuples(STEPS, st.sampled_from(STYLES)), min_size=1, max_size=4),
    batch_size=st.integers(1, 40),
    delivery=st.sampled_from(["at_least_once", "exactly_once"]),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_style_gives_the_same_output_letters_and_positions(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    steps: list[tuple[Step, Callable[[Deed], Callable[..., Any]]]],
    batch_size: int,
    delivery: str,
) -> None:
    """Styles: all by records, all by dicts, all by types, and each processor in a style of its own."""
    folder = tmp_path_factory.mktemp("styles")
    (folder / "in.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    chains = [[style] * len(steps) for style in STYLES] + [[style for _, style in steps]]

    outcomes = [
        trio.run(
            run_pipeline,
            folder,
            [
                make_node(number, step, style)
                for number, ((step, _), style) in enumerate(zip(steps, chain, strict=True))
            ],
            batch_size,
            delivery,
        )
        for chain in chains
    ]

    expected = outcomes[0]
    assert outcomes[1:] == [expected] * (len(chains) - 1)
    assert len(expected.positions) == (1 if lines else 0)

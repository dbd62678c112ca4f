"""The same processors in three styles: functions that take records, dicts, or values of a type."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.workload import Order, cents, dropped, raw
from conduit_py import Batch, Payload, Record, processor, sdk


class GeneratedOptions(sdk.Options):
    """How many records to generate, and how."""

    records: int
    make: Any = raw
    at_once: int | None = None
    """How many a read returns at most; None: as many as are asked for."""


class Generated(sdk.SourceConnector[GeneratedOptions]):
    """The records of the work as raw JSON; the position is the number."""

    # It never waits, so a thread or a coroutine would only cost.
    blocking = False

    def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1

    def read(self, n: int) -> sdk.Records:
        numbers, make = self._take(n), self.options.make
        return [Record(position=b"%d" % number, payload=Payload(after=make(number))) for number in numbers]

    def _take(self, n: int) -> range:
        """The numbers of the next records."""
        first = self._next
        self._next = min(first + min(n, self.options.at_once or n), self.options.records)
        if first == self._next:
            raise sdk.EndOfSource
        return range(first, self._next)


class CountOptions(sdk.Options):
    """Where to count."""

    counter: Any


class Counting(sdk.DestinationConnector[CountOptions]):
    """Counts the records it is given."""

    blocking = False

    def write(self, batch: Batch) -> None:
        self.options.counter.append(len(batch))


class GeneratedPayloads(Generated):
    """The same records, without an object for each until somebody asks for it."""

    def read(self, n: int) -> sdk.Records:
        numbers, make = self._take(n), self.options.make
        return sdk.Payloads([make(number) for number in numbers], sdk.Positions(b"%d", numbers), bytes)


decode = msgspec.json.Decoder().decode
decode_order = msgspec.json.Decoder(Order).decode


@processor
def parse(record: Record) -> Record:
    record.payload.after = decode(record.payload.after)  # type: ignore[arg-type]
    return record


@processor
def set_cents(record: Record) -> Record:
    record.payload["cents"] = cents(record.payload.after)  # type: ignore[arg-type]
    return record


@processor
def drop(record: Record) -> Record | None:
    return None if dropped(record.payload.after) else record  # type: ignore[arg-type]


@processor
def parse_dict(text: bytes) -> dict[str, Any]:
    order: dict[str, Any] = decode(text)
    return order


@processor
def set_cents_of_dict(order: dict[str, Any]) -> dict[str, Any]:
    order["cents"] = cents(order)
    return order


@processor
def drop_dict(order: dict[str, Any]) -> dict[str, Any] | None:
    return None if dropped(order) else order


@processor
def parse_order(text: bytes) -> Order:
    return decode_order(text)


@processor
def set_cents_of_order(order: Order) -> Order:
    order.cents = round(order.amount * 100)
    return order


@processor
def drop_order(order: Order) -> Order | None:
    return None if order.id % 10 == 0 else order


@processor(batch=True)
def all_in_one(batch: Batch) -> list[Record | None]:
    results: list[Record | None] = []
    for record in batch.records:
        payload = record.payload
        order = payload.after
        if isinstance(order, bytes):
            order = payload.after = decode(order)
        order["cents"] = cents(order)  # type: ignore[index, arg-type]
        results.append(None if dropped(order) else record)  # type: ignore[arg-type]
    return results


@processor(batch=True)
def parse_dicts(texts: list[bytes]) -> list[dict[str, Any] | None]:
    """All of W1 in one function, which takes and returns a list, as bytewax has it."""
    return set_and_drop(map(decode, texts))


@processor(batch=True)
def set_and_drop_dicts(orders: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The same for W2, whose source parses."""
    return set_and_drop(orders)


def set_and_drop(orders: Iterable[dict[str, Any]]) -> list[dict[str, Any] | None]:
    results: list[dict[str, Any] | None] = []
    for order in orders:
        order["cents"] = cents(order)
        results.append(None if dropped(order) else order)
    return results


@dataclass(frozen=True)
class Style:
    """One way to write the processors: what their functions take and return, and what the source gives them."""

    source: type[Generated]
    parse: Any
    set_cents: Any
    drop: Any

    @property
    def from_text(self) -> list[Any]:
        """The processors of W1, whose source gives bytes."""
        return [self.parse, self.set_cents, self.drop]

    @property
    def from_fields(self) -> list[Any]:
        """The processors of W2, whose source parses."""
        return [self.set_cents, self.drop]


STYLES = {
    "records": Style(Generated, parse, set_cents, drop),
    "dict": Style(GeneratedPayloads, parse_dict, set_cents_of_dict, drop_dict),
    "typed": Style(GeneratedPayloads, parse_order, set_cents_of_order, drop_order),
}

"""The records of the benchmarks, and what is done to them, the same for every contender."""

from pathlib import Path
from typing import Any

import msgspec

_TEMPLATE = (
    b'{"id":%d,"ts":"2026-11-16T05:11:39.%06dZ","user":"user-%d","amount":%d.25,'
    b'"tags":["alpha","beta","gamma"],"note":"' + b"x" * 64 + b'"}'
)


class Order(msgspec.Struct, kw_only=True, gc=False):
    """A record of the works, typed. Records of other sizes have an id, an amount and sometimes a note."""

    id: int
    ts: str = ""
    user: str = ""
    amount: float
    tags: list[str] = []
    note: str = ""
    cents: int = 0


def raw(number: int) -> bytes:
    """Record `number` as JSON, about 200 bytes."""
    return _TEMPLATE % (number, number % 1_000_000, number % 1000, number % 500)


def sized(number: int, size: int) -> bytes:
    """Record `number` as JSON of about `size` bytes, 25 at least."""
    text = b'{"id":%d,"amount":%d.25' % (number, number % 500)
    padding = size - len(text) - len(b',"note":""}')
    return text + (b',"note":"' + b"x" * padding + b'"}' if padding > 0 else b"}")


def cents(order: dict[str, Any]) -> int:
    """The field that every contender sets."""
    value: int = round(order["amount"] * 100)
    return value


def dropped(order: dict[str, Any]) -> bool:
    """One record in ten goes no further."""
    return bool(order["id"] % 10 == 0)


def write_input(path: Path, records: int) -> None:
    """The file that W2 reads: one record per line."""
    with path.open("wb") as out:
        for start in range(0, records, 10_000):
            out.write(b"".join(raw(number) + b"\n" for number in range(start, min(start + 10_000, records))))

"""The records of the benchmarks, and what is done to them, the same for every contender."""

from pathlib import Path
from typing import Any

_TEMPLATE = (
    b'{"id":%d,"ts":"2026-11-16T05:11:39.%06dZ","user":"user-%d","amount":%d.25,'
    b'"tags":["alpha","beta","gamma"],"note":"' + b"x" * 64 + b'"}'
)


def raw(number: int) -> bytes:
    """Record `number` as JSON, about 200 bytes."""
    return _TEMPLATE % (number, number % 1_000_000, number % 1000, number % 500)


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

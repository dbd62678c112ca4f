"""What one would write by hand: the plain loop, the typed loop, the loop by blocks, and one that survives a kill."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import orjson

from benchmarks.work import Contender, Count, count_lines
from benchmarks.workload import Order, cents, dropped, raw

BLOCK_SIZE = 256 * 1024
DURABLE_SECONDS = 1.0
_LOOK_EVERY = 1000
"""Lines between two looks at the clock."""

decode_order = msgspec.json.Decoder(Order).decode
encode_order = msgspec.json.Encoder().encode


def plain_loop(make: Callable[[int], bytes] = raw) -> Contender:
    """The plain orjson loop over generated records into a counter, which all others are compared with."""

    def run(records: int, folder: Path) -> Count:
        count = 0
        for number in range(records):
            order = orjson.loads(make(number))
            order["cents"] = cents(order)
            if dropped(order):
                continue
            count += 1
        return lambda: count

    return run


def typed_loop_w1(records: int, folder: Path) -> Count:
    """The loop with a msgspec Struct in place of a dict."""
    count = 0
    for number in range(records):
        order = decode_order(raw(number))
        order.cents = round(order.amount * 100)
        if order.id % 10 == 0:
            continue
        count += 1
    return lambda: count


def chained_loop(processors: int) -> Contender:
    """A loop that parses, and sets the field as often as there are further processors."""

    def run(records: int, folder: Path) -> Count:
        count = 0
        for number in range(records):
            text = raw(number)
            if processors:
                order = orjson.loads(text)
                for _ in range(processors - 1):
                    order["cents"] = cents(order)
            count += 1
        return lambda: count

    return run


def plain_loop_w2(records: int, folder: Path) -> Count:
    """The plain orjson loop from file to file. Killed, it starts again from the beginning."""
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        for line in source:
            order = orjson.loads(line)
            order["cents"] = cents(order)
            if dropped(order):
                continue
            out.write(orjson.dumps(order) + b"\n")
    return count_lines(folder / "out.jsonl")


def typed_loop_w2(records: int, folder: Path) -> Count:
    """The same with a msgspec Struct."""
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        for line in source:
            order = decode_order(line)
            order.cents = round(order.amount * 100)
            if order.id % 10 == 0:
                continue
            out.write(encode_order(order) + b"\n")
    return count_lines(folder / "out.jsonl")


def block_loop_w2(records: int, folder: Path) -> Count:
    """The best that a hand can do: typed, decoded and encoded by blocks."""
    decode, encode = msgspec.json.Decoder(Order).decode_lines, msgspec.json.Encoder().encode_lines
    rest = b""
    with (folder / "in.jsonl").open("rb", buffering=0) as source, (folder / "out.jsonl").open("wb", buffering=0) as out:
        while block := source.read(BLOCK_SIZE):
            cut = block.rfind(b"\n") + 1
            kept = []
            for order in decode(rest + block[:cut]):
                order.cents = round(order.amount * 100)
                if order.id % 10:
                    kept.append(order)
            rest = block[cut:]
            out.write(encode(kept))
    return count_lines(folder / "out.jsonl")


def durable_loop(records: int, folder: Path) -> Count:
    """The plain loop with output synced and its place durable every second.

    The place is the offset in the input and the size of the output: who continues there after a kill and cuts
    the output to that size has every line once. That continuation is not written here.
    """
    done_at = time.monotonic()
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        for number, line in enumerate(source, 1):
            order = orjson.loads(line)
            order["cents"] = cents(order)
            if not dropped(order):
                out.write(orjson.dumps(order) + b"\n")
            if number % _LOOK_EVERY == 0 and time.monotonic() - done_at >= DURABLE_SECONDS:
                out.flush()
                os.fdatasync(out.fileno())
                _keep_place(folder, source.tell(), out.tell())
                done_at = time.monotonic()
        out.flush()
        os.fdatasync(out.fileno())
        _keep_place(folder, source.tell(), out.tell())
    return count_lines(folder / "out.jsonl")


def _keep_place(folder: Path, read: int, written: int) -> None:
    with (folder / "place.new").open("wb") as file:
        file.write(b"%d %d" % (read, written))
        file.flush()
        os.fdatasync(file.fileno())
    (folder / "place.new").rename(folder / "place")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

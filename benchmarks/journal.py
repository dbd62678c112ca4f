"""The works about journals: sequencing messages, appending them durably, and copying from journal to journal."""

import os
from functools import partial
from pathlib import Path

import msgspec
import trio

from benchmarks.pipelines import Delivery, run_to_end
from benchmarks.work import CONTROL, LOOP, Count, Work
from conduit_py import Destination, Pipeline, Record, Source
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.frame import Frame, encode_body, pack_bodies
from conduit_py.journal.journal import Journal
from conduit_py.journal.message_id import Flag, MessageUuid, ProducerId
from conduit_py.journal.sequencer import Sequencer
from conduit_py.journal.transactions import Publisher

BATCH = 1000
BODY = b"x" * 100
TRANSACTION = 100


def loop_j1(records: int, folder: Path) -> Count:
    """What any reader must do: take the id of every message apart."""
    raw = MessageUuid(ProducerId.random(), 160, Flag.CONTINUE).to_bytes()
    count = 0
    for _ in range(records):
        id = MessageUuid.from_bytes(raw)
        count += id.flags == Flag.CONTINUE
    return lambda: count


def sequencer_j1(records: int, folder: Path) -> Count:
    """One message a frame: two producers interleaved, transactions of a hundred messages."""
    count = _sequence(records, 1)
    return lambda: count


def sequencer_batches_j1(records: int, folder: Path) -> Count:
    """A hundred messages a frame, as a destination writes them."""
    count = _sequence(records, TRANSACTION)
    return lambda: count


def _sequence(records: int, per_frame: int) -> int:
    frames = _interleaved(min(records, 10_000), per_frame)
    count = 0
    while count < records:
        sequencer = Sequencer("bench")
        for frame in frames:
            sequencer.queue(frame)
            while (found := sequencer.step()) is not None:
                if found.frame.id.flags != Flag.ACK:
                    count += found.stop - found.first
    return min(count, records)  # The last pass may go beyond.


def _interleaved(messages: int, per_frame: int) -> list[Frame]:
    """A journal of two producers that take turns, each with an ACK after its hundred messages."""
    producers = [Publisher(), Publisher()]
    packed, ack = pack_bodies([BODY] * per_frame), pack_bodies([b""])
    ids: list[tuple[MessageUuid, int, bytes]] = []
    for _ in range(messages // (2 * TRANSACTION)):
        for _ in range(TRANSACTION // per_frame):
            ids += [(publisher.in_transaction("bench", per_frame), per_frame, packed) for publisher in producers]
        ids += [(intent.id, 1, ack) for publisher in producers for intent in publisher.ack_intents()]
    return [Frame("bench", 100 * i, 100 * i + 100, *each) for i, each in enumerate(ids)]


def loop_j2(records: int, folder: Path) -> Count:
    """A plain file: every thousand lines one write and one fdatasync."""
    descriptor = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for start in range(0, records, BATCH):
        os.write(descriptor, b"\n".join([BODY] * min(BATCH, records - start)))
        os.fdatasync(descriptor)
    os.close(descriptor)
    return lambda: records


def append_j2(records: int, folder: Path) -> Count:
    """A thousand messages an append, each durable before the next."""
    publisher = Publisher()
    with FileLog(folder / "journal") as log:
        for start in range(0, records, BATCH):
            size = min(BATCH, records - start)
            log.append([BODY] * size, id=publisher.outside_transaction(size))
    return lambda: records


def append_together_j2(records: int, folder: Path) -> Count:
    """Eight tasks append a thousand messages each time, and share writes and fsyncs."""

    async def main() -> None:
        publisher = Publisher()
        starts = iter(range(0, records, BATCH))

        async def work(journal: Journal) -> None:
            for start in starts:
                await journal.append([BODY] * min(BATCH, records - start), stamp=publisher.outside_transaction)

        async with await Journal.open(folder / "journal") as journal, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(work, journal)

    trio.run(main)
    return lambda: records


def append_batch_j2(records: int, folder: Path) -> Count:
    """A thousand messages an append, a barrier after ten appends."""
    publisher = Publisher()
    with FileLog(folder / "journal", sync="batch") as log:
        for start in range(0, records, BATCH):
            size = min(BATCH, records - start)
            log.append([BODY] * size, id=publisher.outside_transaction(size))
            if start % (10 * BATCH) == 0:
                log.barrier()
        log.barrier()
    return lambda: records


def fill_journal(records: int, folder: Path) -> None:
    publisher = Publisher()
    with FileLog(folder / "in", sync="never") as log:
        for start in range(0, records, BATCH):
            bodies = [encode_body(_record(number)) for number in range(start, min(start + BATCH, records))]
            log.append(bodies, id=publisher.outside_transaction(len(bodies)))


def _record(number: int) -> Record:
    return Record.of({"n": number, "user": f"user-{number % 1000}", "amount": number % 500 + 0.25, "note": "x" * 40})


def loop_j3(records: int, folder: Path) -> Count:
    """A hand-written loop: read, decode, encode, write, an fdatasync per thousand records; killed, it repeats some."""
    encode, decode, count = msgspec.msgpack.encode, msgspec.msgpack.decode, 0
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with FileLog(folder / "in") as log:
        for frame in log.reader():
            os.write(out, b"".join([encode(decode(body)) for body in frame.bodies]))
            os.fdatasync(out)
            count += frame.count
    os.close(out)
    return lambda: count


def at_least_once_j3(records: int, folder: Path) -> Count:
    """Journal to journal, default settings."""
    return _copy(folder, "at_least_once")


def exactly_once_j3(records: int, folder: Path) -> Count:
    """The same pipeline exactly-once: transactions of a thousand records, each commit fenced and fsynced."""
    return _copy(folder, "exactly_once")


def _copy(folder: Path, delivery: Delivery) -> Count:
    from conduit_connectors import journal

    pipeline = Pipeline(
        "copy",
        sources=[Source("in", journal.Source(path=folder / "in", until="end"))],
        destinations=[Destination("out", journal.Destination(path=folder / "out"))],
        delivery=delivery,
    )

    run_to_end(pipeline, folder)
    return partial(_count_messages, folder)


def _count_messages(folder: Path) -> int:
    with FileLog(folder / "out") as log:
        return sum(frame.count for frame in log.reader() if frame.id.flags != Flag.ACK)


WORKS = {
    "J1": Work(
        "the sequencer: two producers interleaved, transactions of a hundred messages",
        {
            LOOP: loop_j1,
            CONTROL: loop_j1,
            "conduit-py, message by message": sequencer_j1,
            "conduit-py, frames of 100": sequencer_batches_j1,
        },
    ),
    "J2": Work(
        "durable appends of records of 100 bytes, a thousand at a time",
        {
            LOOP: loop_j2,
            CONTROL: loop_j2,
            "conduit-py": append_j2,
            "conduit-py, 8 tasks": append_together_j2,
            "conduit-py, a barrier per 10": append_batch_j2,
        },
    ),
    "J3": Work(
        "journal to journal",
        {
            LOOP: loop_j3,
            CONTROL: loop_j3,
            "conduit-py, at least once": at_least_once_j3,
            "conduit-py, exactly once": exactly_once_j3,
        },
        fill_journal,
    ),
}

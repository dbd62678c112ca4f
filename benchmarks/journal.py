"""The works about journals: sequencing messages, appending them durably, and copying from journal to journal."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from conduit_py import Destination, Pipeline, Record, Source
from conduit_py.journal.body import encode_body
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.frame import Frame, pack_bodies
from conduit_py.journal.journal import Journal
from conduit_py.journal.message_id import Flag, MessageUuid, ProducerId
from conduit_py.journal.publisher import Publisher
from conduit_py.journal.sequencer import Sequencer
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore

BATCH = 1000
BODY = b"x" * 100
TRANSACTION = 100


def loop_w3(records: int, folder: Path) -> int:
    """What any reader must do: take the id of every message apart."""
    raw = MessageUuid(ProducerId.random(), 160, Flag.CONTINUE).to_bytes()
    count = 0
    for _ in range(records):
        id = MessageUuid.from_bytes(raw)
        count += id.flags == Flag.CONTINUE
    return count


def sequencer_w3(records: int, folder: Path) -> int:
    """One message a frame: two producers interleaved, transactions of a hundred messages."""
    return _sequence(records, 1)


def sequencer_batches_w3(records: int, folder: Path) -> int:
    """A hundred messages a frame, as a destination writes them."""
    return _sequence(records, TRANSACTION)


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


def loop_w4(records: int, folder: Path) -> int:
    """A plain file: every thousand lines one write and one fdatasync."""
    descriptor = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for start in range(0, records, BATCH):
        os.write(descriptor, b"\n".join([BODY] * min(BATCH, records - start)))
        os.fdatasync(descriptor)
    os.close(descriptor)
    return records


def append_w4(records: int, folder: Path) -> int:
    """A thousand messages an append, each durable before the next."""
    publisher = Publisher()
    with FileLog(folder / "journal") as log:
        for start in range(0, records, BATCH):
            size = min(BATCH, records - start)
            log.append([BODY] * size, id=publisher.outside_transaction(size))
    return records


def append_together_w4(records: int, folder: Path) -> int:
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
    return records


def append_batch_w4(records: int, folder: Path) -> int:
    """A thousand messages an append, a barrier after ten appends."""
    publisher = Publisher()
    with FileLog(folder / "journal", sync="batch") as log:
        for start in range(0, records, BATCH):
            size = min(BATCH, records - start)
            log.append([BODY] * size, id=publisher.outside_transaction(size))
            if start % (10 * BATCH) == 0:
                log.barrier()
        log.barrier()
    return records


def _fill(records: int, folder: Path) -> None:
    publisher = Publisher()
    with FileLog(folder / "in", sync="never") as log:
        for start in range(0, records, BATCH):
            bodies = [encode_body(_record(number)) for number in range(start, min(start + BATCH, records))]
            log.append(bodies, id=publisher.outside_transaction(len(bodies)))


def _record(number: int) -> Record:
    return Record.of({"n": number, "user": f"user-{number % 1000}", "amount": number % 500 + 0.25, "note": "x" * 40})


def loop_w5(records: int, folder: Path) -> int:
    """A hand-written loop: read, decode, encode, write, an fdatasync per thousand records; killed, it repeats some."""
    _fill(records, folder)
    encode, decode, count = msgspec.msgpack.encode, msgspec.msgpack.decode, 0
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with FileLog(folder / "in") as log:
        for frame in log.reader():
            os.write(out, b"".join([encode(decode(body)) for body in frame.bodies]))
            os.fdatasync(out)
            count += frame.count
    os.close(out)
    return count


def at_least_once_w5(records: int, folder: Path) -> int:
    """Journal to journal, default settings."""
    return _copy(records, folder, "at_least_once")


def exactly_once_w5(records: int, folder: Path) -> int:
    """The same pipeline exactly-once: transactions of a thousand records, each commit fenced and fsynced."""
    return _copy(records, folder, "exactly_once")


def _copy(records: int, folder: Path, delivery: str) -> int:
    from conduit_connectors import journal

    _fill(records, folder)
    pipeline = Pipeline(
        "copy",
        sources=[Source("in", journal.Source(path=folder / "in", until="end"))],
        destinations=[Destination("out", journal.Destination(path=folder / "out"))],
        delivery=delivery,  # type: ignore[arg-type]
    )

    async def main() -> None:
        async with await SqliteStore.open(folder / "state") as store:
            state = await Supervisor(pipeline, store).run()
            assert state.status is Status.COMPLETED, state

    trio.run(main)
    with FileLog(folder / "out") as log:
        return sum(frame.count for frame in log.reader() if frame.id.flags != Flag.ACK)


WORKS: dict[str, dict[str, Callable[[int, Path], int]]] = {
    "W3": {
        "loop": loop_w3,
        "loop again": loop_w3,
        "conduit-py, message by message": sequencer_w3,
        "conduit-py, frames of 100": sequencer_batches_w3,
    },
    "W4": {
        "loop": loop_w4,
        "loop again": loop_w4,
        "conduit-py": append_w4,
        "conduit-py, 8 tasks": append_together_w4,
        "conduit-py, a barrier per 10": append_batch_w4,
    },
    "W5": {
        "loop": loop_w5,
        "loop again": loop_w5,
        "conduit-py, at least once": at_least_once_w5,
        "conduit-py, exactly once": exactly_once_w5,
    },
}

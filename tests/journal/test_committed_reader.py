"""Reading what is committed: publishers, replays, restarts, on either log (GZ-S10, GZ-S11)."""

from conduit_py.journal.log import Log
from conduit_py.journal.message_id import Clock, Flag, MessageUuid, ProducerId
from conduit_py.journal.transactions import CommittedReader, Publisher, read_uncommitted

A, B = ProducerId(b"\x01prodA"), ProducerId(b"\x01prodB")


def texts(reader: CommittedReader) -> list[str]:
    return [body.decode() for found in reader for body in found.frame.bodies[found.first : found.stop]]


def test_gz_s11_uncommitted_readers_see_all_and_committed_ones_what_was_acknowledged(log: Log) -> None:
    for name, producer, clock, flag in [
        ("A1", A, 160, Flag.CONTINUE),
        ("B1", B, 320, Flag.CONTINUE),
        ("A2", A, 480, Flag.CONTINUE),
        ("B2", B, 640, Flag.CONTINUE),
        ("Bk", B, 800, Flag.ACK),
    ]:
        log.append([name.encode()], id=MessageUuid(producer, clock, flag))

    assert [found.frame.bodies for found in read_uncommitted(log)] == [[b"A1"], [b"B1"], [b"A2"], [b"B2"], [b"Bk"]]
    assert texts(CommittedReader(log, window=1)) == ["B1", "B2"]
    assert texts(CommittedReader(log)) == ["B1", "B2"]


def test_gz_s10_two_publishers_with_one_clock(log: Log) -> None:
    clock = Clock()
    transactional, plain = Publisher(A, clock), Publisher(B, clock)
    reader = CommittedReader(log, window=3)

    log.append([b"one"], id=transactional.in_transaction(log.name))
    log.append([b"two"], id=plain.outside_transaction())
    assert texts(reader) == ["two"]
    (ack,) = transactional.ack_intents()
    log.append([b""], id=ack.id)
    assert texts(reader) == ["one"]

    for body in (b"three", b"five", b"seven"):
        log.append([body], id=transactional.in_transaction(log.name))
        if body != b"seven":
            log.append([{b"three": b"four", b"five": b"six"}[body]], id=plain.outside_transaction())
    assert texts(reader) == ["four", "six"]
    (ack,) = transactional.ack_intents()
    log.append([b""], id=ack.id)
    assert texts(reader) == ["three", "five", "seven"]
    assert ack.id.clock == 1440


def test_an_ack_that_is_sent_again_shows_nothing_twice_and_discards_what_a_dead_producer_left(log: Log) -> None:
    first = Publisher()
    log.append([b"1", b"2"], id=first.in_transaction(log.name, 2))
    (ack,) = first.ack_intents()
    log.append([b""], id=ack.id)
    log.append([b"never committed"], id=first.in_transaction(log.name))

    log.append([b""], id=ack.id)
    second = Publisher()
    log.append([b"3"], id=second.in_transaction(log.name))
    log.append([b""], id=second.ack_intents()[0].id)

    reader = CommittedReader(log)
    assert texts(reader) == ["1", "2", "3"]
    assert not reader.sequencer.pending


def test_reading_goes_on_from_any_checkpoint_with_nothing_lost_or_repeated(log: Log) -> None:
    publisher = Publisher()
    for transaction in range(5):
        for batch in range(3):
            log.append(
                [b"%d.%d.%d" % (transaction, batch, i) for i in range(4)], id=publisher.in_transaction(log.name, 4)
            )
        log.append([b""], id=publisher.ack_intents()[0].id)
    everything = texts(CommittedReader(log))
    assert len(everything) == 60

    reader, seen = CommittedReader(log), list[str]()
    while (found := reader.read()) is not None:
        taken = [body.decode() for body in found.frame.bodies[found.first : found.stop]]
        # The reader is thrown away for a checkpoint that it makes on its way to what follows.
        checkpoint = reader.sequencer.checkpoint()
        assert texts(CommittedReader(log, checkpoint))[: len(taken)] == taken
        seen += taken
    assert seen == everything


def test_the_checkpoint_of_a_drained_run_is_past_its_ack(log: Log) -> None:
    publisher = Publisher()
    log.append([b"1"], id=publisher.in_transaction(log.name))
    end = log.append([b""], id=publisher.ack_intents()[0].id).end
    reader = CommittedReader(log)

    assert texts(reader) == ["1"]
    assert reader.at_end_of_run()
    assert reader.sequencer.checkpoint().offset == end

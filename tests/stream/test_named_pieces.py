"""Pieces that a processor passes on with their names keep them, and with them identities and delivery keys."""

from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Record, Source
from conduit_py.batch import NamedPieces, Piece
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, Refuse, ScriptedDestination, ScriptedSource, position_of

NAMES: dict[int, list[Piece]] = {0: [(0,), (2, 1)], 1: [(3,)], 2: [()], 3: []}
"""By record, what was made of it elsewhere and has arrived; the last one was filtered there."""


def arrived(record: Record) -> Record | list[Record]:
    n = record.payload["n"]
    names = NAMES.get(n)
    if names is None:
        return record
    return NamedPieces([Record.of({"n": 10 * n + number}) for number in range(len(names))], names)


async def test_a_letter_about_a_piece_has_the_name_that_it_came_with(autojump_clock: MockClock) -> None:
    log, letters = EventLog(), list[DeadLetter]()
    refused = {n: Refuse("no") for n in (0, 1, 10, 20, 4)}
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=5, log=log))],
        processors=[arrived],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, script=refused))],
        dead_letters=DeadLetters(letters.append),
    )

    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    assert [(letter.message.sequence, letter.message.piece) for letter in letters] == [
        (0, (0,)),
        (0, (2, 1)),
        (1, (3,)),
        (2, ()),
        (4, ()),
    ]
    assert log.acked["source"] == [position_of(n) for n in range(5)]

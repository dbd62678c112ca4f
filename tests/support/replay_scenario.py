"""ReplayScenario: a ExactlyOnceScenario in which dead letters are sent again, and what must hold of them."""

from exactly_once_scenario import ExactlyOnceScenario

from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.exactly_once.participants import TransactionCheckpoint, decode_replays
from conduit_py.record import Record
from conduit_py.store.claim import Changes
from conduit_py.store.stored_letter import LetterFilter, LetterState, StoredLetter

STUBBORN = 4
MOODY = 5
LETTERS = {1: ["moody"], 2: ["staged"], 3: ["staged", "keyed"], STUBBORN: ["moody"], MOODY: ["moody"]}


class ReplayScenario(ExactlyOnceScenario):
    """It begins with letters of earlier records, all of them queued: numbers below 100, and who refused them.

    One is refused again in every run, one in every other.
    """

    def __init__(self, *, with_home: bool) -> None:
        super().__init__(with_home=with_home, count=2)
        table = self.store.letters.table
        letters = {number: _letter(number, nodes) for number, nodes in LETTERS.items()}
        table.store(letters.values())
        table.queue({letter.id: LETTERS[number] for number, letter in letters.items()})
        self._ids = {letter.id: number for number, letter in letters.items()}

    def refuses(self, number: int, run: int) -> bool:
        return number == STUBBORN or (number == MOODY and run % 2 == 1) or super().refuses(number, run)

    def processed(self, letters: list[int]) -> list[int]:
        again = [number for number, nodes in LETTERS.items() if nodes == ["moody"] and number not in letters]
        return again + super().processed(letters)

    def look(self) -> None:
        super().look()
        open = {self._ids[each.letter.id] for each in self.store.letters.table.replay_queue("scenario", 0, 100)}
        for name in ("home", "staged"):
            for number in open.intersection(self.storages[name].visible) - self._delivered():
                self.violations.append(f"{name} shows letter {number}, whose delivery is not committed (I4)")

    def _delivered(self) -> set[int]:
        """The letters that the last commit says are delivered, though they may be queued still."""
        claimed = self.store._tables.claim_state("scenario")
        checkpoints = [claimed.checkpoint] if claimed is not None else []
        if (changes := self.storages["home"].changes) is not None:
            checkpoints.append(Changes.decode(changes).checkpoint)
        outcomes = [
            each
            for one in checkpoints
            for each in decode_replays(TransactionCheckpoint.decode("scenario", one).replayed)
        ]
        return {self._ids[outcome.id] for outcome in outcomes if not outcome.left}

    async def check(self) -> list[str]:
        await super().check()
        box = self.store.letters
        kept: dict[int, StoredLetter] = {}
        for summary in (await box.page(LetterFilter())).letters:
            if summary.id in self._ids:
                kept[self._ids[summary.id]] = await box.letter(summary.id)
        for number, letter in kept.items():
            if (letter.state, letter.attempts) != (LetterState.KEPT, 2):
                self.violations.append(f"letter {number} is {letter.state} after {letter.attempts} attempts")
        if STUBBORN not in kept or kept.keys() - {STUBBORN, MOODY}:
            self.violations.append(f"the letters {sorted(kept)} are left")
        for name in ("home", "staged", "keyed") if self.with_home else ("staged", "keyed"):
            self._check_vault(name, set(kept))
        return self.violations

    def _check_vault(self, name: str, kept: set[int]) -> None:
        """I11: each letter is an output, once, where it was missing, or a letter still."""
        expected = [n for n, nodes in LETTERS.items() if n not in kept and (name in nodes or nodes == ["moody"])]
        shown = self.storages[name].by_key.values() if name == "keyed" else self.storages[name].visible
        # As with records: what only the last run refused may have been written before, under its key.
        got = sorted(n for n in shown if n < 100 and not (name == "keyed" and n in kept))
        if got != expected:
            self.violations.append(f"{name} has the letters {got}, not {expected}")


def _letter(number: int, nodes: list[str]) -> StoredLetter:
    position = str(number).encode()
    records = {node: Record.of({"n": number}, position=position) for node in nodes}
    first, *others = nodes
    failures = [Failure(node, "not yet") for node in nodes]
    elsewhere = {node: records[node] for node in others}
    return StoredLetter.of(
        DeadLetter("scenario", MessageId("left", number, ()), position, records[first], failures, 1.0, elsewhere)
    )

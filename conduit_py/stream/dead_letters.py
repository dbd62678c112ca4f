"""DeadLetterHandler: what becomes of refused messages."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import trio

from conduit_py.batch import Batch, Span
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import DeadLetterFailed, EnvironmentUnfit, NackNotAllowed, RecordRefused, StateFailed, describe
from conduit_py.pipeline import DeadLetters
from conduit_py.pipeline_settings import Retention
from conduit_py.record_codec import encode_record
from conduit_py.sdk.destination import AckMode, DestinationConnector, StagedDestination
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.plugin_calls import (
    PluginCaller,
    answers_about,
    check_refusals,
    is_async,
    plugin_errors,
    shallow_copy,
)

log = logging.getLogger("conduit_py.dead_letters")

RETAIN_SECONDS = 60.0


class DeadLetterHandler:
    """Stores letters in the order given, durably when `store` returns.

    A failure raises with `stored`, the number of letters that are safe: the message of the next one
    and everything after it must not be acked.
    """

    def __init__(self, node: str, pipeline: str, declared: DeadLetters, meter: Meter, box: DeadLetterStore) -> None:
        self._node = node
        self._pipeline = pipeline
        self._meter = meter
        handler = declared.handler
        self._handler = handler.fresh() if isinstance(handler, DestinationConnector) else handler
        self._calls = PluginCaller(node, self._handler) if isinstance(self._handler, DestinationConnector) else None
        self._answers_later = isinstance(self._handler, DestinationConnector) and self._handler.acks is AckMode.LATER
        # Settlers of several sources share the handler, which must see one call at a time.
        self._lock = trio.Lock()
        self._box = box
        self._retention = declared.retention
        self._retained_at = float("-inf")
        self.in_transaction = False
        """Whether what is stored becomes durable when the handler is staged."""
        self._count = 0

    async def open(self) -> None:
        if self._handler == "journal":
            await self._forget_old()
        if self._calls is not None:
            with plugin_errors(self._node, "open"):
                await self._calls("open")

    async def close(self) -> None:
        if self._calls is not None:
            try:
                with plugin_errors(self._node, "teardown"):
                    await self._calls("teardown")
            finally:
                self._calls.close()

    @property
    def staged_calls(self) -> PluginCaller | None:
        """Exactly-once: the calls of a handler that takes part in the transaction itself."""
        return self._calls if isinstance(self._handler, StagedDestination) else None

    def check(self, letters: Sequence[DeadLetter]) -> None:
        """Exactly-once: raise, before anything is committed, if nobody wants letters."""
        if letters and self._handler == "stop":
            raise LettersNotStored(self._unwanted(letters[0]), letters[0], 0).error

    async def join(self) -> None:
        """Once closed: wait until no write is under way any more."""
        if self._calls is not None:
            await self._calls.join()

    async def store(self, letters: Sequence[DeadLetter]) -> None:
        async with self._lock:
            with self._meter.waiting(WaitReason.DEAD_LETTERS), self._meter.timing(self._meter.calls):
                try:
                    await self._store(letters)
                except LettersNotStored as refused:
                    self._meter.records += refused.stored
                    raise
        self._meter.records += len(letters)

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        if self._handler == "stop":
            raise LettersNotStored(self._unwanted(letters[0]), letters[0], 0)
        if self._calls is not None:
            await self._write(letters, self._calls)
        elif self._handler == "drop":
            for letter in letters:
                log.warning(
                    "dropped a record of %s that %s refused: %s", letter.message.source, letter.node, letter.error
                )
        elif self._handler == "journal":
            await self._keep(letters)
        else:
            await self._hand_over(letters)

    async def _keep(self, letters: Sequence[DeadLetter]) -> None:
        try:
            await self._box.store(letters)
        except RecordRefused as error:
            await self._keep_before(letters, error)
        except (StateFailed, EnvironmentUnfit) as error:
            raise LettersNotStored(self._failed(letters[0], error.message), letters[0], 0) from error
        if time.time() - self._retained_at > RETAIN_SECONDS:
            await self._forget_old()

    async def _keep_before(self, letters: Sequence[DeadLetter], error: RecordRefused) -> None:
        """Keep the letters before the first whose record cannot be kept, and refuse that one."""
        for stored, letter in enumerate(letters):
            try:
                for record in letter.records.values():
                    encode_record(record)
            except RecordRefused as refused:
                if stored:
                    await self._keep(letters[:stored])
                raise LettersNotStored(self._failed(letter, refused.message), letter, stored) from error
        raise error

    async def _forget_old(self) -> None:
        now = self._retained_at = time.time()
        if self._retention != Retention():
            removed = await self._box.retain(self._pipeline, self._retention.since(now), self._retention.count_max)
            if removed:
                log.warning("%s: forgot %d dead letters, as its retention says", self._pipeline, removed)

    async def _write(self, letters: Sequence[DeadLetter], calls: PluginCaller) -> None:
        batch = self._batch(letters)
        try:
            refused = check_refusals(self._node, await calls("write", shallow_copy(batch)), len(batch))
            if not self.in_transaction:
                await calls("flush")
            if self._answers_later:
                refused |= await answers_about(self._node, calls, batch, refused)
        except Exception as error:  # a border: whatever it is, these letters are not safe
            raise LettersNotStored(self._failed(letters[0], describe(error)), letters[0], 0) from error
        if refused:
            first = min(refused)
            raise LettersNotStored(self._failed(letters[first], refused[first]), letters[first], first)

    def _batch(self, letters: Sequence[DeadLetter]) -> Batch:
        span = Span(
            f"{self._pipeline}:dead-letters",
            letters[0].message.source,
            self._count,
            [letter.position for letter in letters],
        )
        batch = Batch(
            span,
            [letter.to_record() for letter in letters],
            range(self._count, self._count + len(letters)),
            [letter.message.piece for letter in letters],
        )
        self._count += len(letters)
        return batch

    async def _hand_over(self, letters: Sequence[DeadLetter]) -> None:
        handler: Any = self._handler
        for stored, letter in enumerate(letters):
            try:
                if is_async(handler):
                    await handler(letter)
                else:
                    await trio.to_thread.run_sync(handler, letter, abandon_on_cancel=True)
            except Exception as error:  # a border: the handler is the user's
                raise LettersNotStored(self._failed(letter, describe(error)), letter, stored) from error

    def _unwanted(self, letter: DeadLetter) -> NackNotAllowed:
        where = f"the record of {letter.message.source} at {printable(letter.position)}"
        return NackNotAllowed(
            f"{letter.node} refused a record: {letter.error}",
            suggestion=f"correct {where}, or go on without such records: dead_letters=DeadLetters(…) keeps them",
        )

    def _failed(self, letter: DeadLetter, why: str) -> DeadLetterFailed:
        return DeadLetterFailed(
            f"a dead letter could not be stored: {why}; {letter.node} had refused the record: {letter.error}",
            suggestion="mend the handler of dead letters and run again: the record was not acked",
        )


def printable(position: bytes) -> str:
    """A position as a person may read it; most are text, and the others at least tell records apart."""
    return repr(position.decode()) if position.isascii() and position.decode().isprintable() else position.hex()


class LettersNotStored(Exception):
    """The office took only the first `stored` letters; `error` is what the run ends with."""

    def __init__(self, error: NackNotAllowed | DeadLetterFailed, letter: DeadLetter, stored: int) -> None:
        super().__init__(str(error))
        error.node = letter.node
        self.error = error
        self.stored = stored


class NackWindow:
    """Of the last `size` outcomes at most `threshold` may be nacks; size 0 allows every nack.

    The first nack too many is refused and freezes the window: from then on every nack is refused and
    acks no longer make room.
    """

    def __init__(self, size: int, threshold: int) -> None:
        # With a threshold of 0 the very next nack trips it, however long the window is.
        self._size = min(size, 1) if threshold == 0 else size
        self._threshold = threshold
        self._outcomes = 0
        self._nacks: deque[int] = deque()
        self._frozen = False

    def ack(self, count: int = 1) -> None:
        if not self._frozen:
            self._outcomes += count

    def nack(self) -> bool:
        """Whether this nack is allowed."""
        if self._size == 0:
            return True
        if self._frozen:
            return False
        self._outcomes += 1
        self._nacks.append(self._outcomes)
        while self._nacks[0] <= self._outcomes - self._size:
            self._nacks.popleft()
        self._frozen = len(self._nacks) > self._threshold
        return not self._frozen

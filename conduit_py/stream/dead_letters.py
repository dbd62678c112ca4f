"""DeadLetterHandler: what a run does with refused messages; one handler for each policy."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import trio

from conduit_py.batch import Batch, Span
from conduit_py.dead_letter import DeadLetter
from conduit_py.dead_letter_policy import (
    DeadLetterPolicy,
    DestinationPolicy,
    DropPolicy,
    FunctionPolicy,
    KeepPolicy,
    StopPolicy,
)
from conduit_py.errors import DeadLetterFailed, EnvironmentUnfit, NackNotAllowed, RecordRefused, StateFailed, describe
from conduit_py.pipeline_settings import Retention
from conduit_py.record_codec import encode_record
from conduit_py.sdk.destination import AckMode, StagedDestination
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.stored_letter import cause_of
from conduit_py.stream.ack_reader import answers_about
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, check_refusals, is_async
from conduit_py.user_errors import as_error

log = logging.getLogger("conduit_py.dead_letters")

RETAIN_SECONDS = 60.0

CAUSES_MAX = 100
OTHER_CAUSES = "other causes"


class DeadLetterHandler(ABC):
    """Stores letters in the given order; they are durable when `store` returns.

    On failure, `store` raises LettersNotStored with the number of stored letters. The message of the first
    letter that is not stored, and every message after it, must not be acked.
    """

    staged_calls: PluginCaller | None = None
    """Exactly-once: the caller of a handler that is staged and takes part in the transaction."""
    closes = False
    """True if it holds a connector, which `close` tears down."""
    in_transaction = False
    """True if stored letters become durable when the handler is staged, not when `store` returns."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        # The settlers of all sources share the handler, and a plugin allows only one call at a time.
        self._lock = trio.Lock()

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def join(self) -> None:
        """Wait until no write is running. Call this after `close`."""
        return

    def check(self, letters: Sequence[DeadLetter]) -> None:
        """Exactly-once: raise, before anything is committed, if letters are not allowed."""
        return

    async def store(self, letters: Sequence[DeadLetter]) -> None:
        async with self._lock:
            with self._meter.waiting(WaitReason.DEAD_LETTERS, timing=self._meter.calls):
                try:
                    await self._store(letters)
                except LettersNotStored as failure:
                    # Those before it are durable and their messages are acked, so they count.
                    self._count_causes(letters[: failure.stored])
                    raise
        self._count_causes(letters)

    async def store_all(self, letters: Sequence[DeadLetter]) -> None:
        """Exactly-once: store these letters, if any. Raises the error of the first that could not be stored."""
        if not letters:
            return
        try:
            await self.store(letters)
        except LettersNotStored as failure:
            raise failure.error from failure

    def _count_causes(self, letters: Sequence[DeadLetter]) -> None:
        self._meter.records += len(letters)
        causes = self._meter.causes
        for letter in letters:
            cause = f"{letter.node}: {cause_of(letter.error)}"
            # Bounded: records decide what an error says, and each could say something new.
            known = cause in causes or len(causes) < CAUSES_MAX
            name = cause if known else OTHER_CAUSES
            causes[name] = causes.get(name, 0) + 1
            if known and letter.location:
                self._meter.cause_locations[name] = letter.location

    @abstractmethod
    async def _store(self, letters: Sequence[DeadLetter]) -> None: ...


class LettersNotStored(Exception):
    """The handler stored only the first `stored` letters; the run ends with `error`."""

    def __init__(self, error: NackNotAllowed | DeadLetterFailed, letter: DeadLetter, stored: int) -> None:
        super().__init__(error.message)
        error.node = letter.node
        error.record = letter.message.source, letter.position
        self.error = error
        self.stored = stored


def new_handler(
    policy: DeadLetterPolicy, node: str, pipeline: str, meter: Meter, letters: DeadLetterStore
) -> DeadLetterHandler:
    """Make the handler of a policy, for one run."""
    # No default for new policies: one without a handler must fail here, not lose letters.
    match policy:
        case StopPolicy():
            return _Stop(meter)
        case DropPolicy():
            return _Drop(meter)
        case KeepPolicy():
            return _Keep(policy, pipeline, meter, letters)
        case DestinationPolicy():
            return _ToDestination(policy, node, pipeline, meter)
        case FunctionPolicy():
            return _CallFunction(policy, meter)
        case _:
            raise AssertionError(f"there is no handler for {policy}")


class _Stop(DeadLetterHandler):
    """The first letter ends the run."""

    def check(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            raise self._refusal(letters[0]).error

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        raise self._refusal(letters[0])

    def _refusal(self, letter: DeadLetter) -> LettersNotStored:
        error = NackNotAllowed(
            f"{letter.node} refused a record: {letter.error}",
            suggestion=letter.advise(
                f"correct {letter.place}, or set dead_letters=DeadLetters(…) to continue without such records"
            ),
        )
        return LettersNotStored(error, letter, 0)


class _Drop(DeadLetterHandler):
    """Logs each letter and drops it."""

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            source, place = letter.message.source, f" (see {letter.location})" if letter.location else ""
            log.warning("dropped a record of %s that %s refused: %s%s", source, letter.node, letter.error, place)


class _Keep(DeadLetterHandler):
    """Stores letters in the state store and removes those past the retention."""

    def __init__(self, policy: KeepPolicy, pipeline: str, meter: Meter, letters: DeadLetterStore) -> None:
        super().__init__(meter)
        self._pipeline = pipeline
        self._letters = letters
        self._retention = policy.retention
        self._retained_at = float("-inf")

    async def open(self) -> None:
        await self._forget_old()

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        try:
            await self._letters.store(letters)
        except RecordRefused as error:
            # One letter that cannot be encoded must not take along those before it: their messages are acked.
            await self._keep_before(letters, error)
        except (StateFailed, EnvironmentUnfit) as error:
            raise _failure(letters, 0, error.message, error.suggestion) from error
        if time.time() - self._retained_at > RETAIN_SECONDS:
            await self._forget_old()

    async def _keep_before(self, letters: Sequence[DeadLetter], error: RecordRefused) -> None:
        """Store the letters before the first one whose record cannot be encoded, then raise for that one."""
        for stored, letter in enumerate(letters):
            try:
                for record in letter.records.values():
                    encode_record(record)
            except RecordRefused as refused:
                if stored:
                    await self._store(letters[:stored])
                raise _failure(letters, stored, refused.message) from error
        raise error

    async def _forget_old(self) -> None:
        now = self._retained_at = time.time()
        if self._retention != Retention():
            removed = await self._letters.retain(self._pipeline, self._retention.since(now), self._retention.count_max)
            if removed:
                log.warning("%s: removed %d dead letters past the retention", self._pipeline, removed)


class _ToDestination(DeadLetterHandler):
    """Writes letters to a destination connector, as records."""

    closes = True

    def __init__(self, policy: DestinationPolicy, node: str, pipeline: str, meter: Meter) -> None:
        super().__init__(meter)
        self._node = node
        self._pipeline = pipeline
        connector = policy.connector.fresh()
        self._calls = PluginCaller(node, connector)
        self._answers_later = connector.acks is AckMode.LATER
        self.staged_calls = self._calls if isinstance(connector, StagedDestination) else None
        self._count = 0

    async def open(self) -> None:
        with PluginErrors(self._node, "open"):
            await self._calls("open")

    async def close(self) -> None:
        try:
            with PluginErrors(self._node, "teardown"):
                await self._calls("teardown")
        finally:
            self._calls.close()

    async def join(self) -> None:
        await self._calls.join()

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        batch = self._batch(letters)
        try:
            refused = check_refusals(self._node, await self._calls("write", batch.copy(deep=False)), len(batch))
            # In a transaction, letters become durable with everything else, when the destination is staged.
            if not self.in_transaction:
                await self._calls("flush")
            if self._answers_later:
                refused |= await answers_about(self._node, self._calls, batch, refused)
        except Exception as error:  # plugin boundary: after any error these letters may be lost
            raise _failure(letters, 0, describe(error)) from error
        if refused:
            # Invariant 3: letters behind the first refused one count as not stored, although they may be written.
            first = min(refused)
            raise _failure(letters, first, refused[first])

    def _batch(self, letters: Sequence[DeadLetter]) -> Batch:
        # A separate owner keeps the delivery keys of letters different from those of the source's records.
        owner, positions = f"{self._pipeline}:dead-letters", [letter.position for letter in letters]
        span = Span(owner, letters[0].message.source, self._count, positions)
        sequences = range(self._count, self._count + len(letters))
        self._count += len(letters)
        pieces = [letter.message.piece for letter in letters]
        return Batch(span, [letter.to_record() for letter in letters], sequences, pieces)


class _CallFunction(DeadLetterHandler):
    """Calls the user's function with each letter."""

    def __init__(self, policy: FunctionPolicy, meter: Meter) -> None:
        super().__init__(meter)
        self._function: Any = policy.function

    async def _store(self, letters: Sequence[DeadLetter]) -> None:
        for stored, letter in enumerate(letters):
            try:
                if is_async(self._function):
                    await self._function(letter)
                else:
                    # Abandoned on cancellation: a function that hangs must not hold up a forceful stop.
                    await trio.to_thread.run_sync(self._function, letter, abandon_on_cancel=True)
            except BaseException as error:  # plugin boundary: the function is the user's
                raise _failure(letters, stored, describe(as_error(error))) from error


def _failure(letters: Sequence[DeadLetter], stored: int, why: str, advice: str | None = None) -> LettersNotStored:
    letter = letters[stored]
    error = DeadLetterFailed(
        f"a dead letter could not be stored: {why}; {letter.node} had refused the record: {letter.error}",
        suggestion=letter.advise(f"{advice or 'repair the dead-letter handler'}, then run again: it was not acked"),
    )
    return LettersNotStored(error, letter, stored)

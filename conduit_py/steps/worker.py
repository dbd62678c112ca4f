"""Worker: runs one step of a graph, message by message, and recovers its place after a crash."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from conduit_py.batch import delivery_key
from conduit_py.crash_point import reach
from conduit_py.errors import ContractBroken, Fenced, describe
from conduit_py.steps.attempt_log import (
    AttemptLog,
    Choice,
    Decided,
    ForkMessage,
    Nothing,
    PositionSnapshot,
    Sent,
    find_start,
    key_parts,
)
from conduit_py.steps.queue import META, IndexTaken, Queues, ReadMessage, Tailer, merge_metadata
from conduit_py.steps.step import Message, Outputs, Process, Step, error_message, filter_messages
from conduit_py.user_errors import as_error

log = logging.getLogger("conduit_py.steps")

UNPLACED = -1
"""In place of an index: the message was never sent."""


class Worker:
    """Runs a step from its inputs to its outputs, again and again, until it is stopped or fails.

    Exactly once: every input ends as exactly one of output, error or nothing (I11), even if the process is killed
    at any moment. The handler may be called again for the same messages, with the same delivery key. At most
    once: an input that was being handled during a crash is not handled again.
    """

    def __init__(
        self,
        uid: str,
        step: Step,
        queues: Queues,
        attempts: AttemptLog,
        stopping: trio.Event,
        system: Mapping[str, Any],
    ) -> None:
        self._uid = uid
        self._step = step
        self._queues = queues
        self._attempts = attempts
        self._stopping = stopping
        self._system = system
        self._raw_tailers = {name: Tailer(queues[queue]) for name, queue in step.tailers.items()}
        self._tailers: dict[str, Tailer] = {}
        self._cursors: dict[str, int] = {}
        self._retrying = False
        self._choice: str | None = None
        self._came = False

    async def run(self) -> None:
        await self._set_out()
        while not self._stopping.is_set():
            # Before anything is read: after a crash the step must read the same messages again, for the same key.
            if not self._retrying and self._exactly_once:
                await self._attempts.append(PositionSnapshot(dict(self._cursors)))
            self._retrying = True
            taken = await self._take()
            if taken is None:
                return
            await self._step_through(taken)
            self._retrying = False
            self._choice = None

    def close(self) -> None:
        for tailer in [*self._tailers.values(), *self._raw_tailers.values()]:
            tailer.close()

    @property
    def _exactly_once(self) -> bool:
        return self._step.strategy == "exactly_once"

    async def _set_out(self) -> None:
        """Find where the last run ended, and finish a fork that it had decided."""
        # First: while an older process can still append, what is read from the log may change.
        await self._attempts.take_over()
        start = await find_start(self._attempts.newest_first(), self._ensure_fate)
        unknown = [queue for queue in self._step.bindings.values() if queue not in start.indices]
        if start.indices and unknown:
            log.warning("%s reads %s for the first time, from its beginning", self._uid, ", ".join(unknown))
        self._cursors = dict(start.indices) | dict.fromkeys(unknown, 0)
        self._tailers = {
            queue: Tailer(self._queues[queue], self._cursors[queue]) for queue in self._step.bindings.values()
        }
        self._retrying, self._choice = start.retrying, start.choice
        if start.unfinished is not None:
            await self._send_parts(start.unfinished)

    async def _ensure_fate(self, sent: Sent) -> bool:
        """Return True if the message is in its queue. If not, make sure that it never will be."""
        queue = await self._queues.open(sent.queue)
        if await queue.key_at(sent.index) == sent.key:
            return True
        # An older process may only be suspended, and append it later. With the index used up it cannot.
        await queue.use_up(sent.index)
        return await queue.key_at(sent.index) == sent.key

    async def _take(self) -> dict[str, ReadMessage] | None:
        """Return the next message of every input, or with alts of one; None if stopped before there is one."""
        if not self._step.alts:
            await self._wait_unless_stop(self._wait_for_all)
            return {queue: await tailer.wait() for queue, tailer in self._tailers.items()} if self._came else None
        if self._choice not in self._tailers:
            self._choice = None
        await self._wait_unless_stop(self._wait_for_one)
        return await self._choose() if self._came else None

    async def _choose(self) -> dict[str, ReadMessage]:
        chosen = self._choice or next(queue for queue, tailer in self._tailers.items() if tailer.ahead)
        # Recorded before use: after a crash another queue could be ready first, and the handler would see other input.
        if self._choice is None and self._exactly_once:
            reach("steps.before_choice")
            await self._attempts.append(Choice(chosen))
            reach("steps.after_choice")
        self._choice = chosen
        return {chosen: await self._tailers[chosen].wait()}

    async def _wait_unless_stop(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait until `wait` returns or the step is stopped; `_came` is True if there is input."""
        self._came = False
        async with trio.open_nursery() as nursery:

            async def come() -> None:
                await wait()
                self._came = not self._stopping.is_set()
                nursery.cancel_scope.cancel()

            async def stop() -> None:
                await self._stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(come)
            nursery.start_soon(stop)

    async def _wait_for_all(self) -> None:
        for tailer in self._tailers.values():
            await tailer.wait()

    async def _wait_for_one(self) -> None:
        if self._choice is not None:
            await self._tailers[self._choice].wait()
            return
        # Cancelling the other waits is safe: waiting does not consume a message.
        async with trio.open_nursery() as nursery:

            async def wait(tailer: Tailer) -> None:
                await tailer.wait()
                nursery.cancel_scope.cancel()

            for tailer in self._tailers.values():
                nursery.start_soon(wait, tailer)

    async def _step_through(self, taken: Mapping[str, ReadMessage]) -> None:
        after = self._cursors | {queue: read.next for queue, read in taken.items()}
        key = delivery_key(key_parts(self._uid, {queue: read.index for queue, read in taken.items()}))
        names = {queue: name for name, queue in self._step.bindings.items()}
        messages = {names[queue]: read.message for queue, read in taken.items()}
        # At most once: recorded as done before the handler runs, so that a crash cannot repeat it.
        if not self._exactly_once:
            await self._attempts.append(Nothing(key, after))
        in_hand: Mapping[str, Message] = messages
        try:
            seen = filter_messages(self._step, messages)
            outputs = await self._handle(seen, key) if seen else {}
            in_hand = outputs or messages
            await self._deliver(outputs, key, after)
        # Another process has taken over the step, and delivers these messages itself.
        except Fenced:
            raise
        except _Decided as failed:
            raise failed.error from None
        except BaseException as error:  # plugin boundary: the handler is the user's
            await self._fail(as_error(error), in_hand, key, after)
        # Only now: waiting did not consume the messages, so after an error above the tailers are where the log is.
        self._cursors = after
        for queue in taken:
            await self._tailers[queue].read()

    async def _handle(self, messages: Mapping[str, Message], key: bytes) -> dict[str, Message]:
        """Call the handler; return its messages by the id of the output queue."""
        step = self._step
        assert step.handler is not None
        appenders = {name: self._queues[queue] for name, queue in step.appenders.items()}
        process = Process(
            step.id,
            step.describe(),
            key.hex(),
            step.strategy,
            step.errors,
            self._system,
            step.options,
            self._raw_tailers,
            appenders,
        )
        made = await call(step.handler, process, dict(messages))
        if made is None or not step.outputs:
            return {}
        unknown = sorted(set(made) - set(step.outputs))
        if unknown:
            raise ContractBroken(self._uid, f"returned a message for {', '.join(unknown)}, which is no output of it")
        meta = merge_metadata(messages.values())
        return {step.outputs[name]: _with(message, meta) for name, message in made.items() if message is not None}

    async def _deliver(self, outputs: Mapping[str, Message], key: bytes, after: dict[str, int]) -> None:
        if not self._exactly_once:
            for queue, message in outputs.items():
                await self._queues[queue].append(message)
        elif not outputs:
            await self._attempts.append(Nothing(key, after))
        elif len(self._step.outputs) == 1:
            for queue, message in outputs.items():
                await self._send(queue, message, key, after)
        else:
            parts = [ForkMessage(queue, UNPLACED, message) for queue, message in outputs.items()]
            await self._send_parts(Decided(parts, key, after))

    async def _send(
        self, queue: str, message: Message, key: bytes, after: dict[str, int], *, error: bool = False
    ) -> None:
        """Log the attempt, then append the message: after a crash the log names the index to check."""
        target = self._queues[queue]
        while True:
            sent = Sent(queue, await target.end(), key, after, error)
            reach("steps.before_attempt")
            await self._attempts.append(sent)
            reach("steps.after_attempt")
            try:
                await target.append(message, key=key, at=sent.index)
            except IndexTaken:
                # Another step wrote to this queue first, or an earlier process of this step that was suspended.
                if await self._ensure_fate(sent):
                    return
                continue
            reach("steps.after_output")
            return

    async def _send_parts(self, decided: Decided) -> None:
        """Send the messages of a fork that are not in their queues yet. They are in the log, so none is made again."""
        parts = [part for part in decided.parts if not await self._has(part, decided.key)]
        try:
            while parts:
                parts = [ForkMessage(part.queue, await self._queues[part.queue].end(), part.message) for part in parts]
                reach("steps.before_attempt")
                await self._attempts.append(Decided(parts, decided.key, decided.after))
                reach("steps.after_attempt")
                parts = [part for part in parts if not await self._place(part, decided.key)]
        except Exception as error:  # some parts may be sent, so the error queue must not get the inputs as well
            raise _Decided(error) from error
        await self._attempts.append(Nothing(decided.key, decided.after))

    async def _has(self, part: ForkMessage, key: bytes) -> bool:
        return part.index != UNPLACED and await self._queues[part.queue].key_at(part.index) == key

    async def _place(self, part: ForkMessage, key: bytes) -> bool:
        """Append a part at the index that the log names. Returns False if another message has that index."""
        try:
            await self._queues[part.queue].append(part.message, key=key, at=part.index)
        except IndexTaken:
            return await self._has(part, key)
        reach("steps.after_output")
        return True

    async def _fail(self, error: Exception, messages: Mapping[str, Message], key: bytes, after: dict[str, int]) -> None:
        """Send the messages to the error queue, drop them, or end the step; never after an output was sent."""
        step = self._step
        log.error("%s failed: %s", self._uid, describe(error))
        newest = self._attempts.newest if self._exactly_once else None
        # The append may have failed after the message was written. Then it counts as delivered, not as failed.
        if isinstance(newest, Sent) and newest.key == key and await self._ensure_fate(newest):
            return
        if step.errors is not None:
            letter = error_message(step, messages, error)
            if self._exactly_once:
                await self._send(step.errors, letter, key, after, error=True)
            else:
                await self._queues[step.errors].append(letter)
        elif step.on_error == "stop" and self._exactly_once:
            raise error
        elif self._exactly_once:
            await self._attempts.append(Nothing(key, after))


class _Decided(Exception):
    """A fork failed after it was decided."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe(error))
        self.error = error


async def call(handler: Any, process: Process, messages: dict[str, Message]) -> Outputs:
    """Call a handler; a sync one runs in a thread, because it may block."""
    if inspect.iscoroutinefunction(handler):
        made: Outputs = await handler(process, messages)
        return made
    return await trio.to_thread.run_sync(handler, process, messages)


def _with(message: Message, meta: Mapping[str, Any]) -> Message:
    return {**message, META: {**meta, **(message.get(META) or {})}} if meta else message

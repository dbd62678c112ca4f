"""Worker: runs one step of a graph, message after message, and knows after a crash where it was."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from conduit_py.batch import delivery_key
from conduit_py.crash_point import reach
from conduit_py.errors import ContractBroken, Fenced
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

log = logging.getLogger("conduit_py.steps")

UNPLACED = -1
"""In place of an index: the message was never on its way."""


class Worker:
    """Takes a step from its inputs to its output, again and again, until it is told to stop or fails.

    Exactly once: every input ends in exactly one of output, error or deliberately nothing (I11), also
    when the process is killed at any moment. The handler may be called again for the same messages,
    with the same delivery key. At most once: an input that was being handled in a crash is not seen again.
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
        """Learn from the log where the last run was, and finish what it had decided."""
        await self._attempts.take_over()
        start = await find_start(self._attempts.newest_first(), self._delivered)
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

    async def _delivered(self, sent: Sent) -> bool:
        """Whether the message is where it was to go; if it is not, it will never be."""
        queue = await self._queues.open(sent.queue)
        if await queue.key_at(sent.index) == sent.key:
            return True
        # Whoever was about to write there may only be frozen: a used index stops him.
        await queue.use_up(sent.index)
        return await queue.key_at(sent.index) == sent.key

    async def _take(self) -> dict[str, ReadMessage] | None:
        """The next message of every input, or with alts of one; None when told to stop before there is one."""
        if not self._step.alts:
            await self._unless_stopped(self._wait_for_all)
            return {queue: await tailer.wait() for queue, tailer in self._tailers.items()} if self._came else None
        if self._choice not in self._tailers:
            self._choice = None
        await self._unless_stopped(self._wait_for_one)
        return await self._choose() if self._came else None

    async def _choose(self) -> dict[str, ReadMessage]:
        chosen = self._choice or next(queue for queue, tailer in self._tailers.items() if tailer.ahead)
        if self._choice is None and self._exactly_once:
            reach("steps.before_choice")
            await self._attempts.append(Choice(chosen))
            reach("steps.after_choice")
        self._choice = chosen
        return {chosen: await self._tailers[chosen].wait()}

    async def _unless_stopped(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait, and note whether it was for something: a stop ends the waiting."""
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
        # Reading takes nothing away, so those that wait in vain have lost nothing.
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
        if not self._exactly_once:
            await self._attempts.append(Nothing(key, after))
        in_hand: Mapping[str, Message] = messages
        try:
            seen = filter_messages(self._step, messages)
            outputs = await self._handle(seen, key) if seen else {}
            in_hand = outputs or messages
            await self._deliver(outputs, key, after)
        except Fenced:
            raise
        except _Decided as failed:
            raise failed.error from None
        except Exception as error:  # a border: the handler is the user's
            await self._fail(error, in_hand, key, after)
        self._cursors = after
        for queue in taken:
            await self._tailers[queue].read()

    async def _handle(self, messages: Mapping[str, Message], key: bytes) -> dict[str, Message]:
        """What the handler makes of the messages, by the id of the output queue."""
        step = self._step
        assert step.handler is not None
        appenders = {name: self._queues[queue] for name, queue in step.appenders.items()}
        process = Process(
            step.id, step.describe(), key.hex(), step.strategy, step.errors, self._system, step.options,
            self._raw_tailers, appenders,
        )  # fmt: skip
        made = await call(step.handler, process, dict(messages))
        if made is None or not step.outputs:
            return {}
        unknown = sorted(set(made) - set(step.outputs))
        if unknown:
            raise ContractBroken(self._uid, f"returned a message for {', '.join(unknown)}, which it has no output for")
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
        """The attempt first, then the message: what the log says is to be there can be looked up."""
        target = self._queues[queue]
        while True:
            sent = Sent(queue, await target.end(), key, after, error)
            reach("steps.before_attempt")
            await self._attempts.append(sent)
            reach("steps.after_attempt")
            try:
                await target.append(message, key=key, at=sent.index)
            except IndexTaken:
                # Another writer of this queue came first; or it was our own frozen predecessor.
                if await self._delivered(sent):
                    return
                continue
            reach("steps.after_output")
            return

    async def _send_parts(self, decided: Decided) -> None:
        """Send what is not there yet. The messages are in the log, so there is no way back and none is needed."""
        parts = [part for part in decided.parts if not await self._has(part, decided.key)]
        try:
            while parts:
                parts = [ForkMessage(part.queue, await self._queues[part.queue].end(), part.message) for part in parts]
                reach("steps.before_attempt")
                await self._attempts.append(Decided(parts, decided.key, decided.after))
                reach("steps.after_attempt")
                parts = [part for part in parts if not await self._placed(part, decided.key)]
        except Exception as error:  # a border: beyond the point where an error queue could take it
            raise _Decided(error) from error
        await self._attempts.append(Nothing(decided.key, decided.after))

    async def _has(self, part: ForkMessage, key: bytes) -> bool:
        return part.index != UNPLACED and await self._queues[part.queue].key_at(part.index) == key

    async def _placed(self, part: ForkMessage, key: bytes) -> bool:
        try:
            await self._queues[part.queue].append(part.message, key=key, at=part.index)
        except IndexTaken:
            return await self._has(part, key)
        reach("steps.after_output")
        return True

    async def _fail(self, error: Exception, messages: Mapping[str, Message], key: bytes, after: dict[str, int]) -> None:
        """Send the messages to the error queue, drop them, or let the step end: one of these, and no output."""
        step = self._step
        log.error("%s failed: %s: %s", self._uid, type(error).__qualname__, error)
        newest = self._attempts.newest if self._exactly_once else None
        if isinstance(newest, Sent) and newest.key == key and await self._delivered(newest):
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
        super().__init__(str(error))
        self.error = error


async def call(handler: Any, process: Process, messages: dict[str, Message]) -> Outputs:
    """Call a handler, a sync one in a thread, because it may block."""
    if inspect.iscoroutinefunction(handler):
        made: Outputs = await handler(process, messages)
        return made
    return await trio.to_thread.run_sync(handler, process, messages)


def _with(message: Message, meta: Mapping[str, Any]) -> Message:
    return {**message, META: {**meta, **(message.get(META) or {})}} if meta else message

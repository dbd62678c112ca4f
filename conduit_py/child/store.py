"""ChildStore: the server's store, used from the process of a pipeline. Only the server keeps state."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import msgspec
import trio

from conduit_py.child.link import StoreCall, StoreReply, ToChild
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import ConduitError, StateFailed
from conduit_py.exactly_once.participants import decode_replays, encode_replays
from conduit_py.owned_process import ChildLink
from conduit_py.store.dead_letter_store import DeadLetterStore, SqlLetters
from conduit_py.store.letter_codec import decode_stored_letter, encode_stored_letter
from conduit_py.store.store import Kind, Store, StoredEntry
from conduit_py.store.stored_letter import QueuedLetter, SettledLetter, StoredLetter
from conduit_py.store.tables import Tables
from conduit_py.stream.signal import Signal
from conduit_py.wire_error import WireError

T = TypeVar("T")


class ChildStore(Store):
    """Calls the server's store, and returns when the server has done it (invariant C1).

    Saves that wait at the same time are one call: hundreds of pipelines would keep the server busy with single ones.

    Calls raise StateFailed when the server is gone. A transaction of several steps cannot be sent, because the
    server must not wait for a child in the middle of one.
    """

    letters: "ChildLetters"

    def __init__(self, link: ChildLink[ToChild]) -> None:
        self.letters = ChildLetters(self._ask)
        self._link = link
        self._number = 0
        self._waiting: dict[int, tuple[trio.Event, list[StoreReply]]] = {}
        self._closed = False
        self._saves: list[_Save] = []
        self._save_made = Signal()

    async def forward_saves(self) -> None:
        """Send the saves of all tasks to the server, in the order in which they were made, until cancelled."""
        while True:
            await self._save_made.wait()
            # No await before the call is on its way: the end of a run, sent later, must not overtake its saves.
            group, self._saves = self._saves, []
            rows = [row for each in group for row in each.rows]
            reply = await self._call("save", rows) if rows else None
            for each in group:
                each.reply = reply
                each.done.set()

    def answer(self, answer: StoreReply) -> None:
        """Pass an answer to the call that waits for it; that may have been cancelled."""
        if answer.number in self._waiting:
            event, answers = self._waiting[answer.number]
            answers.append(answer)
            event.set()

    async def transact(self, work: Callable[[Tables], T]) -> T:
        return cast(T, await self._step("transact", work))

    async def look(self, work: Callable[[Tables], T]) -> T:
        return cast(T, await self._step("look", work))

    async def pipelines(self) -> list[str]:
        return cast(list[str], await self._ask("pipelines"))

    async def close(self) -> None:
        """Refuse further calls. The server's store stays open."""
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        return cast(list[tuple[str, bytes]], await self._ask("load", pipeline, kind))

    async def _save(self, rows: list[StoredEntry]) -> None:
        if self._closed:
            raise StateFailed("the state store is closed")
        # Else it may be sent before its task is cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()
        save = _Save(rows)
        self._saves.append(save)
        self._save_made.set()
        try:
            await save.done.wait()
        except trio.Cancelled:
            # A run that was forced to stop has ended: what it has not sent must not follow.
            if save in self._saves:
                self._saves.remove(save)
            raise
        _result(save.reply)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self._ask("forget", pipeline, kind, node)

    async def _step(self, how: str, work: Callable[[Tables], Any]) -> Any:
        noted = _RecordedCall()
        result = work(cast(Tables, noted))
        assert result is noted, "a transaction of a child is one call of the tables, and returns its result"
        return await self._ask(f"{how}.{noted.name}", *noted.arguments)

    async def _ask(self, name: str, *arguments: Any) -> Any:
        if self._closed:
            raise StateFailed("the state store is closed")
        return _SIGNATURES[name].result.decode(_result(await self._call(name, *arguments)))

    async def _call(self, name: str, *arguments: Any) -> StoreReply | None:
        """Call the server; None if it is gone."""
        self._number += 1
        number, event, answers = self._number, trio.Event(), list[StoreReply]()
        self._waiting[number] = event, answers
        try:
            with suppress(trio.BrokenResourceError):
                await self._link.send(StoreCall(number, name, _ENCODER.encode(arguments)))
                await event.wait()
        finally:
            # Also when cancelled: an answer that comes later belongs to nobody.
            del self._waiting[number]
        return answers[0] if answers else None


class _Save:
    """Rows that wait for the server."""

    def __init__(self, rows: list[StoredEntry]) -> None:
        self.rows = rows
        self.done = trio.Event()
        self.reply: StoreReply | None = None


def _result(reply: StoreReply | None) -> bytes:
    if reply is None:
        raise StateFailed("the server that keeps the state is gone")
    if reply.error is not None:
        raise reply.error.to_error()
    return reply.result


class ChildLetters(DeadLetterStore):
    """The dead letters of the server, as far as a run needs them. The API uses the server's own store."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__()
        self._ask = ask

    def notice(self, pipeline: str) -> None:
        """Call the watcher of a pipeline: letters were queued."""
        if pipeline in self._watchers:
            self._watchers[pipeline]()

    async def store(self, letters: Sequence[DeadLetter]) -> None:
        await self._ask("keep", [encode_stored_letter(StoredLetter.of(letter)) for letter in letters])

    async def replay_queue(self, pipeline: str, after: int, limit: int) -> list[QueuedLetter]:
        packed = await self._ask("queued", pipeline, after, limit)
        return [QueuedLetter(turn, decode_stored_letter(letter)) for turn, letter in packed]

    async def settle(self, settled: Sequence[SettledLetter]) -> None:
        await self._ask("settle", encode_replays(settled))

    async def retain(self, pipeline: str, since: float | None, count_max: int | None) -> int:
        return cast(int, await self._ask("retain", pipeline, since, count_max))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _look(self, work: Callable[[SqlLetters], T]) -> T:
        raise StateFailed("only a server looks through dead letters, not the process of a pipeline")

    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        raise StateFailed("only a server changes dead letters, not the process of a pipeline")


class _RecordedCall:
    """Stands for the tables: records which of their methods is called, and the arguments."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Callable[..., "_RecordedCall"]:
        def note(*arguments: Any) -> "_RecordedCall":
            assert not self.name, f"{self.name} and {name} in one transaction"
            self.name, self.arguments = name, arguments
            return self

        return note


class Signature(NamedTuple):
    """Decoders for the arguments and the result of a call."""

    arguments: "msgspec.msgpack.Decoder[Any]"
    result: "msgspec.msgpack.Decoder[Any]"

    @classmethod
    def of(cls, *arguments: Any, result: Any) -> "Signature":
        return cls(msgspec.msgpack.Decoder(tuple.__class_getitem__(arguments)), msgspec.msgpack.Decoder(result))


def _steps(how: str) -> dict[str, Signature]:
    """The signature of every method of the tables."""
    hints = {name: get_type_hints(getattr(Tables, name)) for name in sorted(Tables.__abstractmethods__)}
    results = {name: types.pop("return") for name, types in hints.items()}
    return {f"{how}.{name}": Signature.of(*types.values(), result=results[name]) for name, types in hints.items()}


# Sets and other collections travel as arrays. The signature of a call makes them sets again.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=list)
_SIGNATURES = {
    "pipelines": Signature.of(result=list[str]),
    "load": Signature.of(str, Kind, result=list[tuple[str, bytes]]),
    "save": Signature.of(list[StoredEntry], result=None),
    "forget": Signature.of(str, Kind, str | None, result=None),
    "keep": Signature.of(list[bytes], result=None),
    "queued": Signature.of(str, int, int, result=list[tuple[int, bytes]]),
    "settle": Signature.of(list[bytes], result=None),
    "retain": Signature.of(str, float | None, int | None, result=int),
    **_steps("transact"),
    **_steps("look"),
}


async def answer_call(store: Store, call: StoreCall) -> StoreReply:
    """Run a call of a child on the server's store."""
    # The names of methods come over the wire: only those with a signature are called.
    signature = _SIGNATURES[call.name]
    arguments = signature.arguments.decode(call.arguments)
    try:
        result = await _run_call(store, call.name, arguments)
    except ConduitError as error:
        return StoreReply(call.number, error=WireError.of(error))
    return StoreReply(call.number, _ENCODER.encode(result))


async def _run_call(store: Store, name: str, arguments: tuple[Any, ...]) -> Any:
    how, _, step = name.partition(".")
    if step:
        run = store.transact if how == "transact" else store.look
        return await run(lambda tables: getattr(tables, step)(*arguments))
    if name in ("keep", "queued", "settle", "retain"):
        return await _run_letters_call(store.letters, name, arguments)
    if name == "pipelines":
        return await store.pipelines()
    direct: dict[str, Callable[..., Awaitable[Any]]] = {
        "load": store._load,
        "save": store._save,
        "forget": store._forget,
    }
    return await direct[name](*arguments)


async def _run_letters_call(letters: DeadLetterStore, name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "keep":
        kept = list(map(decode_stored_letter, *arguments))
        return await letters._change(lambda table: table.store(kept))
    if name == "queued":
        return [(turn, encode_stored_letter(letter)) for turn, letter in await letters.replay_queue(*arguments)]
    if name == "settle":
        return await letters.settle(decode_replays(*arguments))
    return await letters.retain(*arguments)

"""Participants: the destinations that take part in the transactions of a run.

TransactionCheckpoint is the remaining work of a committed transaction, stored in the commit itself.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import trio

from conduit_py.crash_point import reach
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import DeadLetterFailed, EnvironmentUnfit, FatalError, Fenced, RecordRefused, RunError
from conduit_py.graph.guarantees import choose_committing_destination
from conduit_py.sdk.destination import DestinationConnector, StagedDestination, TransactionalDestination
from conduit_py.store.claim import Changes, Claim
from conduit_py.store.letter_codec import (
    decode_dead_letter,
    decode_settled_letter,
    encode_dead_letter,
    encode_settled_letter,
)
from conduit_py.store.stored_letter import SettledLetter
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors

log = logging.getLogger("conduit_py")


class Participants:
    """The home, which is the destination that carries the commit, if any, and the destinations that stage."""

    def __init__(
        self,
        destinations: Mapping[str, PluginCaller],
        dead_letters: Mapping[str, PluginCaller],
        *,
        may_have_home: bool = True,
    ) -> None:
        self._calls = {**destinations, **dead_letters}
        self._databases = [
            node for node, calls in self._calls.items() if isinstance(calls.plugin, TransactionalDestination)
        ]
        self.home = (
            choose_committing_destination(_plugins(destinations), _plugins(dead_letters).values())
            if may_have_home
            else None
        )
        self.staged = [
            node
            for node, calls in self._calls.items()
            if node != self.home and isinstance(calls.plugin, StagedDestination)
        ]

    async def adopt(self, claim: Claim, last_home: str, positions: Mapping[str, bytes]) -> None:
        """Fence older claims in every database, and commit to the store what only the home has committed.

        Every database is claimed, because `last_home`, which carried the last commit, may no longer be the home.
        `positions` are those in the store.
        """
        committed = claim.committed
        for node in self._databases:
            # I7: from here on this database refuses the commits of every older run.
            with PluginErrors(node, "claim"):
                encoded = await self._calls[node]("claim", claim.owner, claim.fence)
            changes = Changes.decode(encoded) if encoded is not None else None
            number = changes.number if changes is not None else 0
            # The process died between the commit in the home and the one in the store.
            if changes is not None and number == committed + 1:
                await claim.commit(without_set_back(claim.owner, changes, positions))
            elif number > committed or (node == last_home and number < committed):
                raise _other_history(node, claim, number)

    async def begin(self, claim: Claim, intents: Mapping[str, bytes]) -> None:
        """Make every staged destination apply its last committed intent and discard everything else it staged."""
        for node in intents:
            if node not in self.staged:
                # A user removed the destination from the pipeline, so its intent cannot be applied.
                log.warning("%s: the last records of %s stay invisible: it was removed", claim.owner, node)
        # Also without an intent: what a crashed run staged and did not commit must be discarded.
        for node in self.staged:
            own = [intents[node]] if node in intents else []
            with PluginErrors(node, "begin"):
                await self._calls[node]("begin", claim.owner, claim.fence, own)

    async def stage(self) -> dict[str, bytes]:
        """Make all writes durable but invisible; return the intents that make them visible."""
        intents: dict[str, bytes] = {}

        async def stage(node: str) -> None:
            with PluginErrors(node, "stage"):
                intent = await self._calls[node]("stage")
            if intent is not None:
                intents[node] = intent

        await _each(self.staged, stage)
        return intents

    async def commit(self, claim: Claim, changes: Changes) -> None:
        """Commit in the home if there is one, then in the store."""
        # I6: one commit decides. With a home it is the home's, and `adopt` repeats the store's after a crash.
        if self.home is not None:
            encoded = changes.encode()
            reach("transaction.before_home_commit")
            with PluginErrors(self.home, "commit"):
                await self._calls[self.home]("commit", encoded)
            reach("transaction.after_home_commit")
        await claim.commit(changes)

    async def apply(self, intents: Mapping[str, bytes]) -> None:
        """Make the staged writes of these intents visible. Applying an intent twice is harmless (I8)."""

        async def apply(node: str) -> None:
            with PluginErrors(node, "apply"):
                await self._calls[node]("apply", intents[node])

        await _each(list(intents), apply)

    async def apply_for(self, owner: str, intents: Mapping[str, bytes]) -> None:
        """Apply the intents of another pipeline at the destinations that both pipelines write to."""
        for node, intent in intents.items():
            shown = False
            if node in self.staged:
                with PluginErrors(node, "apply_for"):
                    shown = await self._calls[node]("apply_for", owner, intent)
            # Not an error: the other pipeline applies them itself when it starts again.
            if not shown:
                log.warning("the last records of %s in %s become visible when it is started again", owner, node)


def _plugins(calls: Mapping[str, PluginCaller]) -> dict[str, DestinationConnector[Any]]:
    return {node: each.plugin for node, each in calls.items() if isinstance(each.plugin, DestinationConnector)}


async def _each(nodes: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Call `work` for all nodes concurrently, because each waits for its own disk or server. Raises the first error."""
    errors: list[RunError] = []

    async def attempt(node: str) -> None:
        try:
            await work(node)
        except RunError as error:
            errors.append(error)
            # The transaction fails anyway, so the others need not finish.
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(attempt, node)
    if errors:
        raise errors[0]


def _other_history(node: str, claim: Claim, number: int) -> FatalError:
    error = FatalError(
        f"{node} has transaction {number} of pipeline {claim.owner!r} as its last, but the state store has "
        f"{claim.committed}: they do not belong together",
        suggestion="use the state directory and the database that were used together before; if one was "
        "restored from a backup, restore the other from the same time",
    )
    error.node = node
    return error


def taken_over(pipeline: str, error: Fenced) -> Fenced:
    """Return the error of a run whose claim was ended by another process."""
    fenced = Fenced(
        f"another process runs pipeline {pipeline!r}, so this one has stopped: {error.message}",
        suggestion="run a pipeline in one process at a time; nothing was lost or duplicated",
    )
    fenced.node = error.node
    return fenced


T = TypeVar("T")

VERSION = 1


class TransactionCheckpoint(msgspec.Struct, frozen=True):
    """The work that a transaction leaves to do after its commit. The next commit replaces it.

    `home` is the destination that carried the commit, or "" if the store did. `intents` are those of staged
    destinations, by node. `letters` are the dead letters, and `replayed` the outcomes of letters that were sent
    again. `before` has the positions of the sources before the transaction.
    """

    home: str = ""
    intents: dict[str, bytes] = {}
    letters: list[bytes] = []
    replayed: list[bytes] = []
    before: dict[str, bytes | None] = {}
    version: int = VERSION

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, pipeline: str, encoded: bytes | None) -> "TransactionCheckpoint":
        if encoded is None:
            return cls()
        try:
            checkpoint = _DECODER.decode(encoded)
        except msgspec.DecodeError as error:
            raise _unreadable(pipeline, str(error)) from error
        # Refused, not guessed: a checkpoint that is read wrongly would skip an intent or apply another.
        if checkpoint.version != VERSION:
            raise _unreadable(pipeline, f"it has version {checkpoint.version}, this release reads {VERSION}")
        return checkpoint


def without_set_back(pipeline: str, changes: Changes, positions: Mapping[str, bytes]) -> Changes:
    """Return the changes to adopt from a transaction that the store does not have yet.

    `positions` are those in the store. If one differs from where the transaction began, a user has set it since
    the crash, and it stays.
    """
    before = TransactionCheckpoint.decode(pipeline, changes.checkpoint).before
    stays = {source for source, position in before.items() if positions.get(source) != position}
    kept = {source: position for source, position in changes.positions.items() if source not in stays}
    # Only positions stay. The state and the intents of the transaction are adopted: they have happened.
    return msgspec.structs.replace(changes, positions=kept)


def encode_letters(letters: Sequence[DeadLetter]) -> list[bytes]:
    """Return the letters as bytes. A letter whose record cannot be encoded raises DeadLetterFailed."""
    return [_encode_letter(letter) for letter in letters]


def _encode_letter(letter: DeadLetter) -> bytes:
    try:
        # Called before the commit. After it, the record would be acked and its letter lost.
        return encode_dead_letter(letter)
    except RecordRefused as error:
        failed = DeadLetterFailed(
            f"a dead letter could not be stored: {error.message}; {letter.node} had refused the record: {letter.error}",
            suggestion=error.suggestion,
        )
        failed.node = letter.node
        raise failed from error


def decode_letters(encoded: Sequence[bytes]) -> list[DeadLetter]:
    """Return the letters that `encode_letters` encoded."""
    return _decode_all("dead letters", decode_dead_letter, encoded)


def encode_replays(outcomes: Sequence[SettledLetter]) -> list[bytes]:
    """Return the outcomes as bytes. A record that cannot be encoded raises DeadLetterFailed."""
    try:
        return list(map(encode_settled_letter, outcomes))
    except RecordRefused as error:
        raise DeadLetterFailed(
            f"a dead letter that was refused again could not be stored: {error.message}", suggestion=error.suggestion
        ) from error


def decode_replays(encoded: Sequence[bytes]) -> list[SettledLetter]:
    """Return the outcomes that `encode_replays` encoded."""
    return _decode_all("replayed dead letters", decode_settled_letter, encoded)


def _decode_all(what: str, decode: Callable[[bytes], T], encoded: Sequence[bytes]) -> list[T]:
    try:
        return list(map(decode, encoded))
    except (ValueError, TypeError, LookupError) as error:
        raise EnvironmentUnfit(f"a checkpoint holds {what} that cannot be read: {error}", suggestion=_HINT) from error


_HINT = "put back a copy of the state, or use the version of conduit-py that wrote it"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TransactionCheckpoint)


def _unreadable(pipeline: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"the checkpoint of pipeline {pipeline!r} cannot be read: {why}",
        suggestion=_HINT,
    )

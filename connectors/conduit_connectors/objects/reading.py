"""ObjectReading: reads one object after another, from any record on. The sources of objects and of files use it."""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from conduit_connectors.objects.contents import ContentOptions, RecordChunk, format_of, read_content
from conduit_connectors.objects.discovery import Discovery, FoundObject, OnReplaced
from conduit_connectors.objects.object_position import ObjectPosition, position_template
from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.removal import ObjectRemoval
from conduit_connectors.objects.store import ObjectBytes, ObjectInfo, ObjectReplaced, ObjectStore
from conduit_py.sdk import (
    EndOfSource,
    FatalError,
    NothingYet,
    Payloads,
    Positions,
    Reading,
    Record,
    Records,
    TransientError,
)

_logger = logging.getLogger(__name__)


class ReadingOptions(NamedTuple):
    """The options of a source of objects."""

    content: ContentOptions
    on_replaced: OnReplaced = "reread"
    follow: bool = False
    poll_seconds: float = 0.0
    after: Literal["keep", "delete", "move"] = "keep"
    move_to: str | None = None
    parquet_memory_max: int = 256 * 2**20


class ObjectReading:
    """Returns the records of all objects that a pattern names, in the order in which the store lists them.

    The position of a record is the same whenever it is read, and has all that is needed to go on after it. It does
    not grow with the number of objects.
    """

    def __init__(self, store: ObjectStore, pattern: ObjectPattern, options: ReadingOptions) -> None:
        self._store = store
        self._options = options
        removes = options.after != "keep"
        self._removal = ObjectRemoval(store, pattern.folder, options.move_to) if removes else None
        self._discovery = Discovery(
            store,
            pattern,
            "consumed" if removes else options.on_replaced,
            follow=options.follow,
            poll_seconds=options.poll_seconds,
            consumed=self._removal or (),
        )
        self._parts: Iterator[FoundObject] | None = None
        self._open: _OpenObject | None = None
        self._parquet: Any = None
        self._silent: FoundObject | None = None
        """The last object, if it had no records: its end is in no position yet."""

    def start(self, position: bytes | None) -> None:
        """Go on after a position, or begin."""
        if position is None:
            return
        last = ObjectPosition.parse(position)
        if self._removal is not None:
            self._removal.finish_last_run(last.consumed)
        if last.done:
            self._finish(last.found)
            if self._removal is not None:
                self._removal.handle_ack(last)
        elif not self._reopen(last):
            self._discovery.finish(last.found)
        self._discovery.resume(last.found)

    def read(self, n: int) -> Records | Reading:
        while True:
            if self._open is None and not self._begin_next():
                assert self._silent is not None
                return self._end_of_silent(self._silent)
            assert self._open is not None
            chunk = self._open.take(n)
            if chunk is not None:
                found = self._open.found
                records = _records(chunk, self._open.template)
                if self._open.ended:
                    self._close()
                    self._finish(found)
                return records
            found = self._open.found
            self._close()
            self._finish(found)
            self._silent = found

    def handle_ack(self, positions: Sequence[bytes]) -> None:
        if self._removal is not None and positions:
            self._removal.handle_ack(ObjectPosition.parse(positions[-1]))

    def split(self, size: int) -> bytes:
        """Return objects of about so many bytes, for `start_part`."""
        parts = []
        if self._open is not None:
            # Read in part by an earlier run.
            found, offset = self._open.found, self._open.offset
            parts.append((ObjectPosition(found, offset, False), offset))
            self._close()
            self._finish(found)
        total = sum(each.found.info.size for each, _ in parts)
        while total < size:
            try:
                found = self._discovery.next()
            except (EndOfSource, NothingYet):
                if not parts:
                    raise
                break
            self._discovery.finish(found)
            parts.append((ObjectPosition(found, 0, False), 0))
            total += found.info.size
        return msgspec.msgpack.encode([position_template(each.found) % offset for each, offset in parts])

    def start_part(self, part: bytes) -> None:
        """Read only the objects of a part."""
        positions = [ObjectPosition.parse(each) for each in msgspec.msgpack.decode(part, type=list[bytes])]
        first, *rest = positions
        if not self._reopen(first):
            raise self._gone(first.found.info)
        self._parts = iter([each.found for each in rest])

    def close(self) -> None:
        self._close()
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None
        self._store.close()

    def _begin_next(self) -> bool:
        """Open the next object. False if none is opened now, and the end of a silent one is to be reported first."""
        if self._removal is not None and self._removal.is_full:
            if self._silent is not None:
                # Only the ack of its end makes room: none of those that wait may have a record.
                return False
            raise NothingYet
        while self._open is None:
            try:
                found = self._next_found()
            except (EndOfSource, NothingYet):
                if self._silent is not None and self._removal is not None:
                    return False
                raise
            self._open = self._open_listed(found)
        return True

    def _open_listed(self, found: FoundObject) -> "_OpenObject | None":
        """Open an object that was there when it was listed. None if it is passed over."""
        try:
            return self._open_object(found, 0)
        except (FileNotFoundError, ObjectReplaced) as error:
            if self._parts is not None:
                raise self._gone(found.info) from None
            _logger.info("%s is gone or was replaced before it was read", self._store.show(found.info.name))
            current = self._store.find(found.info.name) if isinstance(error, ObjectReplaced) else None
        if current is None:
            self._discovery.finish(found._replace(info=found.info._replace(mark="")))
            return None
        if self._options.on_replaced != "new-only":
            # It counts as stored after this round began, and is left to the next one.
            return None
        # By name no round would find it: it is not after those that are read next.
        try:
            return self._open_object(found._replace(info=current), 0)
        except (FileNotFoundError, ObjectReplaced) as error:
            hint = "store an object when it is complete, under a name of its own"
            what = f"{self._store.show(current.name)} is replaced again and again, before it is read"
            raise TransientError(what, suggestion=hint) from error

    def _next_found(self) -> FoundObject:
        if self._parts is None:
            return self._discovery.next()
        found = next(self._parts, None)
        if found is None:
            raise EndOfSource
        return found

    def _end_of_silent(self, found: FoundObject) -> Reading:
        self._silent = None
        assert self._removal is not None
        return Reading([], position=position_template(found, self._removal.waiting) % -1)

    def _finish(self, found: FoundObject) -> None:
        self._silent = None
        if self._removal is not None:
            self._removal.add(found.round.number, found.info)
        if self._parts is None:
            self._discovery.finish(found)

    def _reopen(self, last: ObjectPosition) -> bool:
        """Go on in an object that was read in part. False if it was replaced and the rest of it is not wanted."""
        info, address = last.found.info, self._store.show(last.found.info.name)
        try:
            there = self._store.find(info.name)
            if there is None:
                raise self._gone(info)
            if there.mark != info.mark:
                raise ObjectReplaced
            self._open = self._open_object(last.found, last.offset)
        except FileNotFoundError:
            raise self._gone(info) from None
        except ObjectReplaced:
            if self._options.on_replaced == "refuse":
                raise FatalError(
                    f"{address} was replaced: it is not the object that was read up to {last.offset}",
                    suggestion='put the old one back, or read the new one with on_replaced="reread"',
                ) from None
            _logger.warning("%s was replaced when it was read up to %d: its rest is missed", address, last.offset)
            return False
        return True

    def _gone(self, info: ObjectInfo) -> FatalError:
        return FatalError(
            f"{self._store.show(info.name)} is gone, and it was read only in part",
            suggestion="put it back; an object may be removed when it was read to its end",
        )

    def _open_object(self, found: FoundObject, offset: int) -> "_OpenObject":
        content = self._store.open(found.info)
        template = position_template(found, () if self._removal is None else self._removal.waiting)
        info, options = found.info, self._options.content
        try:
            if format_of(info.name, options) == "parquet":
                chunks = self._read_parquet(content, info, offset)
            else:
                chunks = read_content(info.name, content, offset, options)
            return _OpenObject(found, template, content, chunks, offset, self._store.show(info.name))
        except BaseException:
            # It reads the first records, which may fail, also because the caller was cancelled.
            content.close()
            raise

    def _read_parquet(self, content: ObjectBytes, info: ObjectInfo, offset: int) -> Iterator[RecordChunk]:
        # Imported only here: pyarrow may not be installed.
        from conduit_connectors.objects.parquet_chunks import ParquetChunks

        if self._parquet is None:
            options = self._options
            self._parquet = ParquetChunks(options.parquet_memory_max, options.content.line_size_max)
        chunks: Iterator[RecordChunk] = self._parquet.read(content, info.size, offset)
        return chunks

    def _close(self) -> None:
        if self._open is not None:
            self._open.content.close()
            self._open = None


class _OpenObject:
    """An object that is being read. It is one chunk ahead, so that the last record is known to be the last."""

    def __init__(
        self,
        found: FoundObject,
        template: bytes,
        content: ObjectBytes,
        chunks: Iterator[RecordChunk],
        offset: int,
        address: str,
    ) -> None:
        self.found = found
        self.template = template
        self.content = content
        self.offset = offset
        self.ended = False
        self._chunks = chunks
        self._address = address
        self._fetched_end = offset
        self._ahead = self._next()

    def take(self, n: int) -> RecordChunk | None:
        """Return the next records, at most `n`; None at the end. The number of the very last one is negative."""
        if self._ahead is None:
            self.ended = True
            return None
        chunk, rest = self._ahead.split(n)
        self._ahead = rest if rest is not None else self._next()
        self.offset = chunk.ends[-1]
        if self._ahead is None:
            self.ended = True
            chunk = chunk._replace(ends=[*chunk.ends[:-1], -chunk.ends[-1]])
        return chunk

    def _next(self) -> RecordChunk | None:
        try:
            chunk = next(self._chunks, None)
            if chunk is not None:
                self._fetched_end = chunk.ends[-1]
            return chunk
        except ValueError as error:
            # A damaged object is a dead letter, with its address, in place of its rest. Others are read on.
            self._chunks = iter(())
            reason = f"{self._address} cannot be read any further: {error}"
            return RecordChunk([os.fsencode(self._address)], [self._fetched_end + 1], {0: reason})
        except (FileNotFoundError, ObjectReplaced) as error:
            hint = "objects must not change while they are read; the next run finds out what it is now"
            raise TransientError(f"{self._address} was replaced while it was read", suggestion=hint) from error
        except OSError as error:
            hint = "check the disk or the service"
            raise TransientError(f"{self._address}: {error}", suggestion=hint) from error


def _records(chunk: RecordChunk, template: bytes) -> Records | Reading:
    positions = Positions(template, chunk.ends, ascending=chunk.ends[-1] > 0)
    records: Records
    if chunk.kind is Record:
        records = chunk.values
        for record, position in zip(records, positions, strict=True):
            record.position = position
    elif isinstance(chunk.values, list):
        records = Payloads(chunk.values, positions, chunk.kind)
    else:
        records = Payloads.of_table(chunk.values, positions)
    return Reading(records, chunk.refused) if chunk.refused else records

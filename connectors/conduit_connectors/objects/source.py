"""The source of objects: files and objects of S3, GCS, Azure and other stores, in many formats."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Unpack

from conduit_connectors.objects.contents import ContentOptions
from conduit_connectors.objects.object_position import ObjectPosition
from conduit_connectors.objects.pattern import parse_place
from conduit_connectors.objects.reading import ObjectReading, ReadingOptions
from conduit_connectors.objects.source_options import SourceArguments, SourceOptions
from conduit_py import sdk
from conduit_py.sdk import FatalError, Reading, Records

_PROBED_MAX = 1000


class Source(sdk.SplittableSource[SourceOptions]):
    """The records of files and objects, object after object in the order in which the store lists them.

    At-least-once on its own, exactly-once with a destination that can: positions are stable, and reading goes on
    exactly after any record. Objects must be complete when they appear, and must not grow: write under a name that
    begins with a dot or an underscore and rename, or upload, which is complete or not there.

    Formats: `lines` (raw bytes), `json` (one object per line), `json-array` (one array of objects), `csv`, `opencdc`
    (a whole record per line), `avro`, `parquet`. "auto" takes the ending of the name: .jsonl, .ndjson, .json (lines or
    an array), .csv, .avro, .parquet, lines for others, each with .gz, .bz2, .zst or .lz4 behind it. What cannot be read
    is a dead letter: one line, one row, one element. A damaged object is one dead letter in place of its rest.

    Without `follow` it ends when everything that was there at the start is read. The next run goes on with what
    was stored since. `on_replaced` says what that is:

    - "reread": every object that was stored after those that were read, whatever its name; also one that was read
      and is replaced, which is read from its start. Stores tell that by the time of an object. Objects that were read
      in the last hour, up to 256, are remembered. So a late one, such as a slow upload, is not missed. Where more
      objects are stored in an hour and uploads in parts are slow, use `after`, which misses none. A local file counts
      as stored when its inode changed, so that one which is moved there is found. So a change of its mode, its owner or
      its name counts too: it is read again, unless it is still remembered.
    - "new-only": objects that are listed after the last one that was read. For names that grow, such as dates. The
      cheapest for many objects: the others are not even listed.
    - "refuse": the same, but an object that is stored later and listed before is an error, so that none is missed.

    With `after` objects are deleted, or moved below `move_to`, when all of their records are durable; then
    everything that is there is unread. After a crash the next run finishes that. An object that was replaced
    in the meantime stays, and is read.

    Memory does not grow with the number of objects or their size: names are listed page by page, and of an object only
    a block is in memory, of a large row at most `line_size_max`. Compressed content is decompressed as it is read.
    Parquet is decoded in another process with a limit on its memory.

    On Spark the executors read several objects at once.
    """

    # Requests to a service take long; a local disk does not, so the runtime decides.
    blocking = None
    repeatable_hint: ClassVar[str] = 'let it read with on_replaced="new-only" and after="keep"'

    _reading: ObjectReading | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def gives(self) -> Any:
        return {"lines": bytes, "auto": Any, "opencdc": Any}.get(self.options.format, dict)

    @property
    def endless(self) -> bool:
        return self.options.follow

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        """True if a position depends only on the object and those before it, not on what was stored meanwhile."""
        return self.options.on_replaced == "new-only" and self.options.after == "keep"

    def data_file(self) -> Path | None:
        pattern = self.options.pattern
        return Path(pattern.exact[0]) if pattern.scheme == "file" and pattern.exact else None

    def datasets(self) -> Sequence[sdk.Dataset]:
        urls = self.options.url
        return [sdk.Dataset.at(url) for url in ([urls] if isinstance(urls, str) else urls)]

    def probe(self) -> str:
        pattern = self.options.pattern
        store = self.options.open_store(pattern.scheme, pattern.root)
        try:
            if pattern.scheme == "file" and not Path(pattern.folder or ".").exists():
                raise FatalError(f"there is no {pattern.folder}", suggestion="correct `url`")
            # Only the first: a listing may be long, and may have to be paid for.
            listed = islice(store.list(pattern.folder, None), _PROBED_MAX)
            names = [info.name for info in listed if pattern.matches(info.name)]
        finally:
            store.close()
        return f"{store.show(names[0])} is there" if names else f"nothing among the first {_PROBED_MAX} names matches"

    def open(self, position: bytes | None) -> None:
        self._reading = self._make_reading()
        self._reading.start(position)

    def read(self, n: int) -> Records | Reading:
        assert self._reading is not None
        return self._reading.read(n)

    def ack(self, positions: Sequence[bytes]) -> None:
        if self._reading is not None:
            self._reading.handle_ack(positions)

    def reads_alone(self) -> str | None:
        if self.options.after == "keep":
            return None
        return f"objects get `after={self.options.after!r}` at their ends, which are known only where they are read"

    @property
    def acks_last(self) -> bool:
        # Acks are for objects that are removed, and those are not split.
        return True

    def split(self, size: int) -> bytes:
        assert self._reading is not None
        return self._reading.split(size)

    def open_part(self, part: bytes) -> None:
        self._reading = self._make_reading()
        self._reading.start_part(part)

    def check_position(self, position: bytes) -> None:
        ObjectPosition.parse(position)

    def locate_record(self, position: bytes) -> str:
        place = ObjectPosition.parse(position)
        pattern = self.options.pattern
        root = f"{pattern.root}/" if pattern.root else ""
        return f"{root}{place.found.info.name} up to {place.offset}"

    def teardown(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _make_reading(self) -> ObjectReading:
        options = self.options
        pattern = options.pattern
        content = ContentOptions.of(options, self.payload_type)
        move_to = None if options.move_to is None else parse_place(options.move_to).path
        settings = ReadingOptions(
            content,
            options.on_replaced,
            options.follow,
            options.poll_seconds,
            options.after,
            move_to,
            options.parquet_memory_max,
        )
        return ObjectReading(options.open_store(pattern.scheme, pattern.root), pattern, settings)

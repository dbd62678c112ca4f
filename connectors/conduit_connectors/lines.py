"""LineBuffer: cuts blocks of bytes into whole lines, with bounded memory for any line."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

LINE_SIZE_MAX = 16 * 1024 * 1024
"""The most bytes of a line or a row, unless the user gives another number."""
KEPT_OF_LONG_LINE = 1024
"""The bytes that are kept of a line longer than the buffer's `size_max`."""

_BLOCK_SIZE_MIN = 32 * 1024
"""Smaller blocks cost more calls than they save copies."""
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True, eq=False)
class LineEnds(Sequence[int]):
    """The offsets at which consecutive lines end, of which the first begins at `start`.

    They are added up when somebody asks: mostly only the last one is wanted, for the position that is stored.
    """

    start: int
    sizes: list[int]
    last: int
    _listed: list[int] | None = field(default=None, init=False)

    def _list(self) -> list[int]:
        if self._listed is None:
            self._listed = list(accumulate(self.sizes, initial=self.start))[1:]
        return self._listed

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: Any) -> Any:
        if index == -1 and self.sizes:
            return self.last
        if index == 0 and self.sizes:
            return self.start + self.sizes[0]
        if index == slice(0, len(self.sizes)):
            return self
        return self._list()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._list())


class LineBlock(NamedTuple):
    """The bytes of some lines: `begin`, and what `read` has before `stop`."""

    begin: bytes
    read: bytes
    stop: int


class Lines(msgspec.Struct):
    """Consecutive lines, line ends included. `ends[i]` is the offset just past `texts[i]`.

    `long` maps the end of each line that was too long to its size; its text is only its beginning. `block` has the same
    bytes as `texts` if they were read as one, but for a byte order mark.
    """

    texts: list[bytes]
    ends: LineEnds
    long: dict[int, int]
    block: LineBlock | None = None

    def count(self, byte: bytes) -> int:
        """Return how often this byte is in the lines. To join them for that would be a third of the cost."""
        if (block := self.block) is None:
            return b"".join(self.texts).count(byte)
        return block.begin.count(byte) + block.read.count(byte, 0, block.stop)

    def has(self, byte: bytes) -> bool:
        """Return True if this byte is in the lines."""
        if (block := self.block) is None:
            return any(byte in text for text in self.texts)
        return byte in block.begin or block.read.find(byte, 0, block.stop) >= 0


class LineBuffer:
    """Cuts its input into lines, each with the offset at which it ends.

    Holds what was fed and not yet taken. Of a line longer than `size_max` (without its line end) it holds at most
    `size_max` bytes and one block. With `skip_bom` a byte order mark at offset 0 is not part of the first line.
    """

    def __init__(self, offset: int, size_max: int, *, skip_bom: bool = False) -> None:
        self.offset = offset
        """The offset of the input up to which it was fed."""
        self.ended = False
        self._size_max = size_max
        self._skip_bom = skip_bom and offset == 0
        self._texts: list[bytes] = []
        self._sizes: list[int] = []
        self._long: dict[int, int] = {}
        self._next = 0
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._taken_to = offset
        self._block: LineBlock | None = None
        """All lines that wait, if they came with the last block and none of them was taken."""
        self._line_size = 0
        """About how many bytes a line has, by those that came last; 0 before the first."""

    def __len__(self) -> int:
        """How many whole lines are waiting."""
        return len(self._texts) - self._next

    @property
    def size(self) -> int:
        """How many bytes of input have been fed and not yet taken."""
        return self.offset - self._taken_to

    def room_for(self, n: int, most: int) -> int:
        """Return how many bytes to feed, at most `most`, so that the next `n` lines are mostly a whole block."""
        if not self._line_size:
            return most
        # A little less than `n` lines: one that is left would make the next lines no whole block.
        return min(most, max((n - len(self)) * self._line_size * 31 // 32, _BLOCK_SIZE_MIN))

    def feed(self, block: bytes) -> None:
        """Add the bytes that follow those fed before."""
        start = self.offset - self._rest_size
        self.offset += len(block)
        self._rest_size += len(block)
        # readlines of a BytesIO cuts at "\n" only, as we must, and is three times as fast as split.
        texts = io.BytesIO(block).readlines()
        rest = b"" if block.endswith(b"\n") or not texts else texts.pop()
        if texts:
            # Only the first line is joined with what was left: to join whole blocks would copy all of the input.
            begin, waiting = b"".join(self._rest), len(self)
            texts[0] = begin + texts[0]
            self._add(texts, start, self.offset - len(rest))
            self._rest, self._rest_size = [], len(rest)
            self._block = None if waiting else LineBlock(begin, block, len(block) - len(rest))
            self._line_size = (self.offset - len(rest) - start) // len(texts)
        if self._rest_size <= self._size_max:
            self._rest.append(rest)
        else:
            # Too long already: from here on only its size grows, until its line end comes.
            self._rest = [b"".join([*self._rest, rest])[:KEPT_OF_LONG_LINE]]

    def finish(self, *, keep_rest: bool = True) -> None:
        """End the input: a rest without line end becomes a line, or is dropped."""
        self.ended = True
        if self._rest_size and keep_rest:
            self._add([b"".join(self._rest)], self.offset - self._rest_size, self.offset)
            self._rest, self._rest_size = [], 0

    def peek(self) -> Lines:
        """Return the lines that are waiting, without taking them."""
        return self._slice(len(self._texts), self._long)

    def take(self, n: int) -> Lines:
        """Take the next lines, at most `n`."""
        stop = min(self._next + n, len(self._texts))
        taken = self._slice(stop, {})
        if stop == len(self._texts) and not self._long:
            taken.block = self._block
        self._next, self._taken_to, self._block = stop, taken.ends.last, None
        if self._long:
            taken.long = {end: self._long.pop(end) for end in taken.ends if end in self._long}
        return taken

    def _slice(self, stop: int, long: dict[int, int]) -> Lines:
        texts, sizes = self._texts, self._sizes
        # All of them mostly, and then no copy: the buffer changes neither list, but makes others.
        if self._next or stop < len(texts):
            texts, sizes = texts[self._next : stop], sizes[self._next : stop]
        # What is behind the last of them is a rest without its line end.
        last = self.offset - self._rest_size if stop == len(self._texts) else self._taken_to + sum(sizes)
        return Lines(texts, LineEnds(self._taken_to, sizes, last), long)

    def _add(self, texts: list[bytes], start: int, end: int) -> None:
        sizes = list(map(len, texts))
        kept = sum(sizes)
        if kept != end - start or kept > self._size_max:
            sizes[0] += end - start - kept
            self._cut_long(texts, sizes, start)
        if self._skip_bom:
            texts[0] = texts[0].removeprefix(_BOM)
            self._skip_bom = False
        if len(self):
            texts, sizes = self._texts[self._next :] + texts, self._sizes[self._next :] + sizes
        self._texts, self._sizes, self._next, self._block = texts, sizes, 0, None

    def _cut_long(self, texts: list[bytes], sizes: list[int], end: int) -> None:
        """Shorten the lines that are too long. `sizes` are those of the input, which may be more than is kept."""
        for index, text in enumerate(texts):
            end += sizes[index]
            bare = sizes[index] - text.endswith(b"\n")
            if bare > self._size_max:
                self._long[end] = bare
                texts[index] = text[:KEPT_OF_LONG_LINE]

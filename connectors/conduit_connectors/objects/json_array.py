"""JsonArray: cuts a JSON array into its elements, with no more than one of them in memory."""

import re
from typing import NamedTuple

from conduit_connectors.compression import ByteStream
from conduit_connectors.lines import KEPT_OF_LONG_LINE

# A flat object is one token, which makes the usual array quick to cut.
_TOKEN = re.compile(rb'\{[^][{}"]*+(?:"(?:[^"\\]|\\.)*+"[^][{}"]*+)*+\}|"(?:[^"\\]|\\.)*+"|[\[\]{},"]', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_BLOCK_SIZE = 2**18


class ArrayElements(NamedTuple):
    """Elements as their bytes, the offset just past each, and the sizes of those that are too long, by index."""

    texts: list[bytes]
    ends: list[int]
    long: dict[int, int]


class JsonArray:
    """The elements of one array, as their bytes.

    Reading may begin at the end of any element. Of an element longer than `size_max` only the beginning is kept.
    Raises ValueError where the content is no array.
    """

    def __init__(self, stream: ByteStream, offset: int, size_max: int) -> None:
        self._stream = stream
        self._size_max = size_max
        self._block = b""
        self._at = 0
        self._start = offset
        """The offset of the first byte of `_block`."""
        self._begun = offset > 0
        self._ended = False
        self._error: ValueError | None = None

    def take(self, size: int) -> ArrayElements:
        """Return the next elements, of about `size` bytes; none behind the last one."""
        if self._error is not None:
            raise self._error
        taken = ArrayElements([], [], {})
        first = self._start + self._at
        try:
            while not self._ended and self._start + self._at - first < size and self._reaches_element():
                text, length = self._cut()
                if length > self._size_max:
                    taken.long[len(taken.texts)] = length
                    text = text[:KEPT_OF_LONG_LINE]
                taken.texts.append(text)
                taken.ends.append(self._start + self._at)
        except ValueError as error:
            if not taken.texts:
                raise
            # First what is whole.
            self._error = error
        return taken

    def _reaches_element(self) -> bool:
        """Go to the first byte of the next element; False at the end of the array."""
        sign = self._sign()
        if not self._begun and sign != b"[":
            raise ValueError(f"the content begins with {sign!r}, not with the bracket of a JSON array")
        if sign == b"]" and self._begun:
            self._finish()
            return False
        if sign not in (b"[", b",") or (sign == b"[" and self._begun):
            raise ValueError(f"there is {sign!r} at byte {self._start + self._at}, where a comma belongs")
        before = self._start + self._at
        self._at += 1
        following = self._sign()
        if sign == b"[" and following == b"]":
            self._finish()
            return False
        if following in (b",", b"]", b"}"):
            raise ValueError(f"there is {following!r} at byte {before + 1}, where an element belongs")
        self._begun = True
        return True

    def _finish(self) -> None:
        self._at += 1
        self._ended = True
        self._skip_space()
        if self._at < len(self._block):
            raise ValueError(f"there is more at byte {self._start + self._at}, behind the end of the array")

    def _cut(self) -> tuple[bytes, int]:
        """Return the element that begins here, or its beginning if it is too long, and its size."""
        kept, begin, depth, at = b"", self._start + self._at, 0, self._at
        while True:
            stop, at, depth = _scan(self._block, at, depth)
            if stop is not None:
                text = kept or self._block[self._at : stop].rstrip(b" \t\r\n")
                self._at = stop
                return text, self._start + stop - begin
            if len(self._block) - self._at > self._size_max:
                if at == self._at:
                    raise ValueError(f"a text at byte {self._start + at} has more than line_size_max bytes")
                kept = kept or self._block[self._at : self._at + KEPT_OF_LONG_LINE]
                self._at = at
            at -= self._at
            if not self._fill():
                raise ValueError("the content ends in the middle of the array")
            at += self._at

    def _sign(self) -> bytes:
        self._skip_space()
        if self._at == len(self._block):
            raise ValueError("the content ends in the middle of the array")
        return self._block[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while True:
            found = _SPACE.match(self._block, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._block) or not self._fill():
                return

    def _fill(self) -> bool:
        """Read the next block, and forget what was cut."""
        block = self._stream.read(_BLOCK_SIZE)
        if not self._start and not self._block and block.startswith(b"\xef\xbb\xbf"):
            self._start, block = 3, block[3:]
        self._block = self._block[self._at :] + block
        self._start, self._at = self._start + self._at, 0
        return bool(block)


def _scan(block: bytes, at: int, depth: int) -> tuple[int | None, int, int]:
    """Look for the end of an element from `at` on: where it is, else from where to look again with more bytes."""
    for token in _TOKEN.finditer(block, at):
        sign = token[0]
        if sign == b'"':
            # A text that goes on in the next block.
            return None, token.start(), depth
        if sign in (b"[", b"{"):
            depth += 1
        elif sign in (b"]", b"}", b","):
            if not depth:
                return token.start(), at, 0
            if sign != b",":
                depth -= 1
                if not depth:
                    return token.end(), at, 0
        elif sign[0] == 0x7B and not depth:
            return token.end(), at, 0
        at = token.end()
    return None, at, depth

"""`chunk` makes several records of a long text, such as for a model that takes so much at once."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, Required, TypedDict, Unpack

from pydantic import Field, model_validator

from conduit_processors.field_processor import FieldOptions, Inner, OneFieldProcessor, copies_with
from conduit_py.sdk import Record, RecordRefused
from conduit_py.sdk.template import FieldPath, kind_of, option_error

INDEX: Final = "chunk.index"
COUNT: Final = "chunk.count"
START: Final = "chunk.start"
_BREAKS: Final = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?…][\"')\]]*\s"), re.compile(r"\s"))
"""Where a text is cut, the best first: between paragraphs, lines, sentences, words."""
_PIECES_MAX: Final = 10_000


class TextPart(NamedTuple):
    """A part of a text, and where it begins."""

    start: int
    text: str


class ChunkOptions(FieldOptions):
    """Options of chunk."""

    field: Inner = Field(description="the field with the text: inside .Payload.After, .Payload.Before or .Key")
    size: int = Field(default=2000, ge=1, description="the most characters of a chunk")
    overlap: int = Field(default=200, ge=0, description="about how many characters of a chunk are in the next one too")
    key_name: str | None = Field(
        default="chunk",
        min_length=1,
        description="the name in the key of the record that gets the number of the chunk, if the key is structured",
    )

    @model_validator(mode="after")
    def _check_overlap(self) -> "ChunkOptions":
        if 2 * self.overlap > self.size:
            raise option_error("has an overlap of more than half of its size")
        return self


class ChunkArguments(TypedDict, total=False):
    """ChunkOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]
    size: int
    overlap: int
    key_name: str | None


class Chunk(OneFieldProcessor[ChunkOptions]):
    """Sends on a copy of the record for each chunk of its text, which takes the place of the text.

    It cuts between paragraphs, lines, sentences or words, in the second half of a chunk, and anywhere if there is no
    such place. The metadata has `chunk.index`, `chunk.count` and `chunk.start`, the character of the text at which the
    chunk begins. A structured key gets the number too, so that chunks of a text do not replace each other. A record
    with an empty text is filtered; a field that is no text is refused.
    """

    def __init__(self, **options: Unpack[ChunkArguments]) -> None:
        super().__init__(**options)

    def process(self, record: Record) -> list[Record]:
        options = self.options
        text = options.field.get(record)
        if not isinstance(text, str):
            raise RecordRefused(f"{options.field}: cannot be cut: it is {kind_of(text)} and not a text")
        if len(text) > _PIECES_MAX * (options.size - options.overlap):
            raise RecordRefused(f"{options.field}: has {len(text)} characters, too many for chunks of {options.size}")
        chunks = list(cut_text(text, options.size, options.overlap))
        pieces = copies_with(record, options.field, [chunk.text for chunk in chunks])
        for index, (piece, chunk) in enumerate(zip(pieces, chunks, strict=True)):
            piece.metadata |= {INDEX: str(index), COUNT: str(len(chunks)), START: str(chunk.start)}
            if options.key_name is not None and isinstance(piece.key, dict):
                piece.key = {**piece.key, options.key_name: index}
        return pieces


def cut_text(text: str, size: int, overlap: int) -> Iterator[TextPart]:
    """Yield the chunks of a text, each of at most `size` characters. They cover all of it, in order."""
    start = 0
    while start < len(text):
        end = start + size
        if end >= len(text):
            yield TextPart(start, text[start:])
            return
        # In the second half: an earlier place would make a chunk that is hardly longer than the overlap.
        end = _last_break(text, start + (size + 1) // 2, end) or end
        yield TextPart(start, text[start:end])
        # A chunk begins with a word, if there is one in the overlap. It moves on in any case: half of the size is
        # at least the overlap, and a chunk is longer than that.
        wanted = max(end - overlap, start + 1)
        word = _BREAKS[-1].search(text, wanted, end) if overlap else None
        start = word.end() if word is not None and word.end() < end else wanted


def _last_break(text: str, first: int, last: int) -> int | None:
    """Return the end of the best break that ends in this part of the text."""
    for pattern in _BREAKS:
        found = [each.end() for each in pattern.finditer(text, first, last)]
        if found:
            return found[-1]
    return None

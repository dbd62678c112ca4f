"""`chunk`: all of a text, in parts that are short enough, cut where a reader would."""

from typing import Any, cast

import pytest
from conduit_processors.chunk import Chunk, cut_text
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Record, RecordRefused


@given(
    text=st.text(alphabet=st.sampled_from("ab .\n!é"), max_size=300),
    size=st.integers(1, 40),
    overlap=st.integers(0, 20),
)
def test_parts_cover_the_text_in_order_and_are_short_enough(text: str, size: int, overlap: int) -> None:
    overlap = min(overlap, size // 2)
    parts = list(cut_text(text, size, overlap))

    covered = 0
    for part in parts:
        assert part.text == text[part.start : part.start + len(part.text)]
        assert 0 < len(part.text) <= size
        assert part.start <= covered < part.start + len(part.text)
        assert covered - part.start <= overlap
        covered = part.start + len(part.text)
    assert covered == len(text)


def test_it_cuts_between_paragraphs_then_sentences_then_words() -> None:
    paragraphs = "One two three.\n\nFour five six seven."
    sentences = "One two three. Four five six seven."

    assert [part.text for part in cut_text(paragraphs, 22, 0)] == ["One two three.\n\n", "Four five six seven."]
    assert [part.text for part in cut_text(sentences, 22, 0)] == ["One two three. ", "Four five six seven."]
    assert [part.text for part in cut_text("one two three four", 11, 0)] == ["one two ", "three four"]
    assert [part.text for part in cut_text("abcdefgh", 3, 0)] == ["abc", "def", "gh"]
    assert [part.text for part in cut_text("one two three four five", 14, 6)] == [
        "one two three ",
        "three four ",
        "four five",
    ]


def test_each_part_is_a_record_with_a_key_of_its_own() -> None:
    chunk = Chunk(field="text", size=4, overlap=0)
    pieces = chunk.process(Record.of({"id": 7, "text": "abcdefgh"}, key={"id": 7}))

    assert [piece.payload.after for piece in pieces] == [{"id": 7, "text": "abcd"}, {"id": 7, "text": "efgh"}]
    assert [piece.key for piece in pieces] == [{"id": 7, "chunk": 0}, {"id": 7, "chunk": 1}]
    assert pieces[1].metadata == {"chunk.index": "1", "chunk.count": "2", "chunk.start": "4"}
    assert chunk.process(Record.of({"text": ""})) == []


@pytest.mark.parametrize("value", [5, None, ["a"], "x" * 50_000])
def test_what_cannot_be_cut_is_refused_as_it_was(value: Any) -> None:
    record = Record.of({"text": value})

    with pytest.raises(RecordRefused):
        Chunk(field="text", size=4, overlap=0).process(record)
    assert cast("dict[str, Any]", record.payload.after)["text"] == value


def test_an_overlap_of_more_than_half_is_a_problem() -> None:
    [problem] = Chunk(field="text", size=10, overlap=6).problems

    assert "more than half" in problem.message

"""LineBuffer: whatever the blocks, the same lines at the same offsets, and never more memory than allowed."""

from itertools import accumulate

from conduit_connectors.lines import KEPT_OF_LONG_LINE, LineBuffer
from hypothesis import given
from hypothesis import strategies as st

contents = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\x85"]), max_size=40).map(
    b"".join
)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def blocks(content: bytes, sizes: list[int]) -> list[bytes]:
    """The content in blocks whose sizes go round in circles."""
    found: list[bytes] = []
    while content:
        size = sizes[len(found) % len(sizes)]
        found.append(content[:size])
        content = content[size:]
    return found


def split(content: bytes) -> list[bytes]:
    """The lines of the content with their line ends: what the buffer should make of it."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


@given(contents, cuts, cuts)
def test_lines_and_offsets_do_not_depend_on_the_blocks(content: bytes, sizes: list[int], takes: list[int]) -> None:
    buffer = LineBuffer(100, 1000)
    texts: list[bytes] = []
    ends: list[int] = []
    for index, block in enumerate(blocks(content, sizes)):
        buffer.feed(block)
        taken = buffer.take(takes[index % len(takes)])
        texts += taken.texts
        ends += taken.ends
    buffer.finish()
    last = buffer.take(len(content) + 1)

    assert texts + last.texts == split(content)
    assert [*ends, *last.ends] == [100 + end for end in accumulate(map(len, split(content)))]
    assert (len(buffer), buffer.size, buffer.ended) == (0, 0, True)


@given(contents, cuts, cuts, st.sampled_from([3, 1000]))
def test_bytes_are_found_in_lines_as_in_their_texts(
    content: bytes, sizes: list[int], takes: list[int], size_max: int
) -> None:
    buffer = LineBuffer(0, size_max, skip_bom=True)
    for index, block in enumerate([*blocks(content, sizes), b""]):
        buffer.feed(block) if block else buffer.finish()
        taken = buffer.take(takes[index % len(takes)])

        text = b"".join(taken.texts)
        assert [taken.count(byte) for byte in (b"a", b"\n")] == [text.count(b"a"), text.count(b"\n")]
        assert [taken.has(byte) for byte in (b"b", b"\r")] == [b"b" in text, b"\r" in text]


def test_lines_that_were_read_as_one_block_need_not_be_joined() -> None:
    buffer = LineBuffer(0, 1000)
    buffer.feed(b"first\nsec")
    first = buffer.take(10)
    buffer.feed(b"ond\nthird\nfou")
    whole = buffer.take(10)
    buffer.feed(b"rth\nfifth\n")
    parts = buffer.take(1), buffer.take(1)

    assert first.block == (b"", b"first\nsec", 6)
    assert whole.block == (b"sec", b"ond\nthird\nfou", 10)
    assert [part.block for part in parts] == [None, None]


def test_a_block_has_about_as_many_lines_as_are_wanted() -> None:
    buffer = LineBuffer(0, 1000)
    assert buffer.room_for(1000, 200_000) == 200_000

    buffer.feed(b"x" * 99 + b"\n" + b"y" * 99 + b"\n")

    assert 95_000 < buffer.room_for(1002, 200_000) <= 100_000
    assert buffer.room_for(1002, 50_000) == 50_000
    assert 0 < buffer.room_for(2, 1000) <= 1000


@given(contents, cuts, st.integers(1, 6))
def test_long_lines_are_reported_with_their_size_and_the_others_are_whole(
    content: bytes, sizes: list[int], size_max: int
) -> None:
    buffer = LineBuffer(0, size_max)
    for block in blocks(content, sizes):
        buffer.feed(block)
    buffer.finish()
    lines = buffer.take(1000)

    expected = split(content)
    ends = list(accumulate(map(len, expected)))
    sizes_found = [len(line) - line.endswith(b"\n") for line in expected]
    assert list(lines.ends) == ends
    assert lines.long == {end: size for end, size in zip(ends, sizes_found, strict=True) if size > size_max}
    whole = [line for line, end in zip(lines.texts, ends, strict=True) if end not in lines.long]
    assert whole == [line for line, size in zip(expected, sizes_found, strict=True) if size <= size_max]


def test_of_a_long_line_only_its_beginning_is_kept() -> None:
    buffer = LineBuffer(0, 2000)
    for _ in range(100):
        buffer.feed(b"x" * 1000)
    buffer.feed(b"end\nnext\n")
    lines = buffer.take(10)

    assert lines.texts == [b"x" * KEPT_OF_LONG_LINE, b"next\n"]
    assert list(lines.ends) == [100_004, 100_009]
    assert lines.long == {100_004: 100_003}


def test_what_has_no_line_end_waits_until_the_end_and_can_be_dropped_then() -> None:
    kept, dropped = LineBuffer(0, 100), LineBuffer(0, 100)
    for buffer in (kept, dropped):
        buffer.feed(b"whole\npart")
        assert (len(buffer), buffer.size) == (1, 10)
        assert buffer.take(5).texts == [b"whole\n"]
        assert buffer.size == 4

    kept.finish()
    dropped.finish(keep_rest=False)

    assert kept.take(5).texts == [b"part"]
    assert dropped.take(5).texts == []


def test_a_byte_order_mark_is_skipped_at_the_start_of_the_input_only() -> None:
    bom = b"\xef\xbb\xbf"
    buffer, further, raw = LineBuffer(0, 100, skip_bom=True), LineBuffer(9, 100, skip_bom=True), LineBuffer(0, 100)
    for each in (buffer, further, raw):
        for byte in bom + b"a\n" + bom + b"b\n":
            each.feed(bytes([byte]))

    assert buffer.peek().texts == [b"a\n", bom + b"b\n"]
    assert list(buffer.peek().ends) == [5, 10]
    assert further.peek().texts == raw.peek().texts == [bom + b"a\n", bom + b"b\n"]


def test_lines_that_were_taken_stay_as_they_are_when_more_are_fed() -> None:
    buffer = LineBuffer(0, 100)
    buffer.feed(b"a\nbb\n")
    seen, taken = buffer.peek(), buffer.take(2)
    buffer.feed(b"ccc\ndddd\n")
    buffer.take(1)
    buffer.feed(b"e\n")
    for lines in (seen, taken):
        assert lines.texts == [b"a\n", b"bb\n"]
        assert list(lines.ends) == [2, 5]
    assert buffer.take(2).texts == [b"dddd\n", b"e\n"]


def test_peeking_takes_nothing() -> None:
    buffer = LineBuffer(0, 100)
    buffer.feed(b"1\n2\n3\n")
    buffer.take(1)

    assert buffer.peek().texts == buffer.peek().texts == [b"2\n", b"3\n"]
    assert buffer.take(9).texts == [b"2\n", b"3\n"]

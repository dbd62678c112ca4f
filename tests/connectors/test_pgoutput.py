"""The parser of PostgreSQL's logical replication: it reads what an encoder wrote, and refuses everything else."""

import re
import struct
from typing import Any

import pytest
from conduit_connectors.change_queue import ChangeQueue
from conduit_connectors.postgres.changes import (
    OpenTransaction,
    PublishedRelation,
    changes_of_message,
    hold_usual_change,
)
from conduit_connectors.postgres.pgoutput import (
    UNCHANGED,
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    Message,
    MessageMalformed,
    OriginMessage,
    RelationColumn,
    RelationMessage,
    RowValues,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
    parse_message,
)
from conduit_connectors.postgres.position import SourcePosition
from conduit_connectors.postgres.replication import (
    Keepalive,
    format_lsn,
    parse_frame,
    parse_lsn,
    read_begin,
    read_commit,
)
from conduit_connectors.postgres.schemas import TableShape
from hypothesis import given
from hypothesis import strategies as st


def encode(message: Message) -> bytes:
    """Encode a message as the documentation of PostgreSQL has it."""
    match message:
        case BeginMessage(commit_lsn, committed_at, xid):
            return struct.pack("!cQqI", b"B", commit_lsn, committed_at, xid)
        case CommitMessage(commit_lsn, end_lsn, committed_at):
            return struct.pack("!cBQQq", b"C", 0, commit_lsn, end_lsn, committed_at)
        case OriginMessage(commit_lsn, name):
            return struct.pack("!cQ", b"O", commit_lsn) + text(name)
        case TypeMessage(oid, schema, name):
            return struct.pack("!cI", b"Y", oid) + text(schema) + text(name)
        case RelationMessage(oid, schema, name, identity, columns):
            head = struct.pack("!cI", b"R", oid) + text(schema) + text(name) + identity.encode()
            return head + struct.pack("!H", len(columns)) + b"".join(map(column, columns))
        case InsertMessage(relation, after):
            return struct.pack("!cI", b"I", relation) + row(b"N", after)
        case UpdateMessage(relation, before, key_only, after):
            old = b"" if before is None else row(b"K" if key_only else b"O", before)
            return struct.pack("!cI", b"U", relation) + old + row(b"N", after)
        case DeleteMessage(relation, before, key_only):
            return struct.pack("!cI", b"D", relation) + row(b"K" if key_only else b"O", before)
        case TruncateMessage(relations, cascade, restart):
            head = struct.pack("!cIB", b"T", len(relations), cascade + 2 * restart)
            return head + b"".join(struct.pack("!I", oid) for oid in relations)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = struct.pack("!cBQ", b"M", transactional, lsn) + text(prefix)
            return head + struct.pack("!i", len(content)) + content


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def column(each: RelationColumn) -> bytes:
    return bytes([each.identity]) + text(each.name) + struct.pack("!Ii", each.type_oid, each.type_modifier)


def row(kind: bytes, values: RowValues) -> bytes:
    parts = [kind, struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, bytes):
            parts.append(b"t" + struct.pack("!i", len(value)) + value)
        else:
            parts.append(b"u")
    return b"".join(parts)


lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=8)
rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=12), max_size=6).map(tuple)
columns = st.builds(RelationColumn, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())
messages = st.one_of(
    st.builds(BeginMessage, lsns, times, oids),
    st.builds(CommitMessage, lsns, lsns, times),
    st.builds(OriginMessage, lsns, names),
    st.builds(TypeMessage, oids, names, names),
    st.builds(RelationMessage, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=5).map(tuple)),
    st.builds(InsertMessage, oids, rows),
    st.builds(UpdateMessage, oids, rows, st.booleans(), rows),
    st.builds(UpdateMessage, oids, st.none(), st.just(False), rows),
    st.builds(DeleteMessage, oids, rows, st.booleans()),
    st.builds(TruncateMessage, st.lists(oids, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=20)),
)

NAMES = {
    "B": "Begin",
    "C": "Commit",
    "O": "Origin",
    "R": "Relation",
    "Y": "Type",
    "I": "Insert",
    "U": "Update",
    "D": "Delete",
    "T": "Truncate",
    "M": "Logical decoding",
}


@given(messages)
def test_every_message_is_read_as_it_was_written(message: Message) -> None:
    assert parse_message(encode(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_off_is_refused_by_its_name(message: Message, data: Any) -> None:
    whole = encode(message)
    size = data.draw(st.integers(1, len(whole) - 1))

    with pytest.raises(MessageMalformed, match=f"^{NAMES[chr(whole[0])]} message of {size} bytes"):
        parse_message(whole[:size])


@given(messages, st.binary(min_size=1, max_size=5))
def test_bytes_after_the_end_of_a_message_are_refused(message: Message, more: bytes) -> None:
    with pytest.raises(MessageMalformed, match=NAMES[chr(encode(message)[0])]):
        parse_message(encode(message) + more)


@given(messages, st.data())
def test_a_damaged_message_is_refused_or_is_another_message(message: Message, data: Any) -> None:
    """What is accepted is written as the same bytes again: no byte is ignored, so no value is wrong."""
    damaged = bytearray(encode(message))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    check_random(bytes(damaged))


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_are_a_message(raw: bytes) -> None:
    check_random(raw)


@given(st.sampled_from([name.encode() for name in NAMES]), st.binary(max_size=60))
def test_random_bytes_of_each_kind_are_refused_or_are_a_message(kind: bytes, raw: bytes) -> None:
    check_random(kind + raw)


def check_random(raw: bytes) -> None:
    try:
        message = parse_message(raw)
    except MessageMalformed:
        return
    again = encode(message)
    # An empty schema stands for pg_catalog.
    assert again == raw or again.replace(b"pg_catalog\0", b"\0", 1) == raw


def test_a_length_that_is_larger_than_the_message_costs_no_memory() -> None:
    with pytest.raises(MessageMalformed, match="Truncate message of 6 bytes, at byte 6: a length of 17179869180 bytes"):
        parse_message(struct.pack("!cIB", b"T", 2**32 - 1, 0))
    with pytest.raises(MessageMalformed, match=r"Insert message .* a length of 2147483647 bytes, and 1 are left"):
        parse_message(struct.pack("!cIcHci", b"I", 1, b"N", 1, b"t", 2**31 - 1) + b"x")
    with pytest.raises(MessageMalformed, match=r"Insert message .* a length of -1 bytes"):
        parse_message(struct.pack("!cIcHci", b"I", 1, b"N", 1, b"t", -1))


@pytest.mark.parametrize("kind", [b"S", b"E", b"c", b"A", b"b", b"P", b"K", b"r", b"", b"\xff"])
def test_messages_of_later_versions_of_the_protocol_are_refused(kind: bytes) -> None:
    with pytest.raises(MessageMalformed, match="an unknown message"):
        parse_message(kind)


@given(lsns, st.booleans())
def test_frames_are_read(lsn: int, reply: bool) -> None:
    begin = BeginMessage(lsn, 1, 2)
    keepalive = struct.pack("!cQqB", b"k", lsn, 5, reply)

    assert parse_frame(struct.pack("!cQQq", b"w", lsn, lsn, 5) + encode(begin)) == begin
    assert parse_frame(keepalive) == Keepalive(lsn, reply)


@given(st.sampled_from([b"", b"w", b"k", b"x"]), st.binary(max_size=40))
def test_random_frames_are_refused_by_name_or_are_frames(kind: bytes, raw: bytes) -> None:
    try:
        parsed = parse_frame(kind + raw)
    except MessageMalformed as refusal:
        reason = str(refusal)
    else:
        reason = type(parsed).__name__

    assert re.search("XLogData|Keepalive|an unknown frame|[Mm]essage", reason)


TYPES = {"id": 20, "ok": 16, "body": 3802, "note": 114, "name": 25, "price": 1700, "at": 1184, "raw": 17, "took": 1186}
COLUMNS = tuple(RelationColumn(name, oid, -1, name == "id") for name, oid in TYPES.items())
TEXTS = [
    "1", "-7", "1_0", " 5", "t", "f", "", "NaN", "1.50", "{}", "[1, 2.5]", "[0.1000000000000000055]", "null", " [1]",
    '{"a": 1, "a": 2}', '"x"', "2026-01-02 03:04:05.6+00", "infinity", "0044-03-15 01:02:03 BC", "10000-01-01 00:00:00",
    "\\x00ff", "P1D", "é", "١", "[" * 300 + "]" * 300,
]  # fmt: skip
values = st.none() | st.just(UNCHANGED) | st.sampled_from(TEXTS).map(str.encode) | st.binary(max_size=6)
wide_rows = st.tuples(*[values] * len(COLUMNS)) | rows
row_messages = st.one_of(
    st.builds(InsertMessage, st.sampled_from([7, 8, 9]), wide_rows),
    st.builds(UpdateMessage, st.just(7), wide_rows, st.booleans(), wide_rows),
    st.builds(UpdateMessage, st.just(7), st.none(), st.just(False), wide_rows),
    st.builds(DeleteMessage, st.just(7), wide_rows, st.booleans()),
)
_columns = [(each.name, each.type_oid, -1) for each in COLUMNS]
RELATION = PublishedRelation(
    RelationMessage(7, "public", "t", "d", COLUMNS), TableShape("public.t", _columns, ["id"], {}, {}), ("id",)
)


@given(row_messages, st.data())
def test_what_is_read_in_one_pass_is_what_the_parser_and_the_decoder_read(message: Message, data: Any) -> None:
    """The quick way reads a frame as the other one does, or leaves it to that. It never reads what that refuses."""
    frame = bytearray(struct.pack("!cQQq", b"w", 1, 2, 3) + encode(message))
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: len(frame) - data.draw(st.sampled_from([0, 0, 0, 1, 5]))]
    relations, transaction = {7: RELATION, 8: None}, OpenTransaction(5, 6, "0/5", {"m": "x"})
    at = SourcePosition.within("1", "0/5", 3, 0, ())
    quick, slow = ChangeQueue[SourcePosition](), ChangeQueue[SourcePosition]()
    if not hold_usual_change(bytes(frame), relations, transaction, at, quick):
        assert not quick.release(at)
        return
    parsed = parse_frame(bytes(frame))

    assert isinstance(parsed, InsertMessage | UpdateMessage | DeleteMessage)
    [change] = changes_of_message(parsed, RELATION, RELATION.origin(transaction), at)
    slow.append(change)
    assert quick.release(at)
    # By their texts: NaN is no NaN, and 1 would be True.
    assert repr(list(quick.take(1)[0].records)) == repr(list(slow.take(1)[0].records))


def test_usual_changes_are_read_in_one_pass() -> None:
    """Else all of them would be right, and slow."""
    whole = (b"1", b"t", b"[]", None, b"n", b"1.5", b"2026-01-02 03:04:05+00", b"\\x00", b"P1D")
    toasted = (*whole[:2], UNCHANGED, *whole[3:])
    deleted = (b"1", *[None] * 8)
    messages: list[Message] = [
        InsertMessage(7, whole),
        UpdateMessage(7, None, False, toasted),
        DeleteMessage(7, deleted, True),
    ]
    frames = [struct.pack("!cQQq", b"w", 1, 2, 3) + encode(each) for each in messages]
    transaction, at = OpenTransaction(5, 6, "0/5", {}), SourcePosition.within("1", "0/5", 3, 0, ())
    ready = ChangeQueue[SourcePosition]()

    assert all(hold_usual_change(frame, {7: RELATION}, transaction, at, ready) for frame in frames)


@given(messages)
def test_the_ends_of_a_transaction_are_read_as_the_parser_reads_them(message: Message) -> None:
    frame = struct.pack("!cQQq", b"w", 1, 2, 3) + encode(message)
    found = read_begin(frame) or read_commit(frame)

    assert found == (message if isinstance(message, BeginMessage | CommitMessage) else None)
    for wrong in (frame + b"x", frame[:-1], b"k" + frame[1:]):
        assert (read_begin(wrong), read_commit(wrong)) == (None, None)


@given(lsns)
def test_a_place_in_the_log_is_written_as_postgres_writes_it(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize("wrong", ["", "0", "/", "0/", "1/-1", "0x1/2", "123456789/0", "0/0/0", " 1/1", "g/1"])
def test_what_is_no_place_in_the_log_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not a place in the log"):
        parse_lsn(wrong)

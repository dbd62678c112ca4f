"""What a statement of the binary log does to rows that the log has no rows for."""

import re
from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from conduit_connectors.mysql.binlog_events import LoggedStatement

TableName = tuple[str, str]
"""A database and a table in it."""


class StatementEffect(Enum):
    """What the reader of the log has to do about a statement."""

    NONE = "nothing"
    COMMIT = "the transaction ends"
    ROLLBACK = "the transaction was undone"
    ROLLBACK_TO = "a part of the transaction was undone"
    EMPTIES = "the tables have no rows any more"
    REPLACES = "rows of the tables came or went without being logged"
    ROWS = "rows were changed, and the log has the statement in place of the rows"
    DROPS_DATABASE = "all tables of the database are gone"


class ParsedStatement(msgspec.Struct, frozen=True):
    """The effect of a statement, and the tables that have it."""

    effect: StatementEffect
    tables: tuple[TableName, ...] = ()
    database: str = ""

    @property
    def ends_transaction(self) -> bool:
        return self.effect in (StatementEffect.COMMIT, StatementEffect.ROLLBACK)


_NOTHING = ParsedStatement(StatementEffect.NONE)
_TOKEN = re.compile(
    r"""
    (?P<skipped>\s+ | /\*M?!\d* | \*/ | /\*.*?(?:\*/|\Z) | (?:--(?=\s|\Z)|\#)[^\n]*)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<double>"(?:[^"\\]|""|\\.)*")
    | (?P<text>'(?:[^'\\]|''|\\.)*')
    | (?P<word>[^\W]+(?:\$[\w$]*)?|\$[\w$]+)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CHANGES_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "HANDLER"})
_PARTITION_CHANGES = (
    ("TRUNCATE", "PARTITION"),
    ("DROP", "PARTITION"),
    ("EXCHANGE", "PARTITION"),
    ("CONVERT", "PARTITION"),
    ("CONVERT", "TABLE"),
    ("DISCARD", "TABLESPACE"),
    ("IMPORT", "TABLESPACE"),
    ("SYSTEM", "VERSIONING"),
)


class _Token(msgspec.Struct, frozen=True, gc=False):
    text: str
    """A keyword in capitals, or a mark."""
    name: str | None = None
    """The name that it stands for, if it can be one."""


def parse_effect(statement: LoggedStatement) -> ParsedStatement:
    """Return what a statement does."""
    tokens = list(_tokens(statement.sql, ansi_quotes=statement.ansi_quotes))
    words = [token.text for token in tokens]
    first = words[0] if words else ""
    if first == "COMMIT":
        return ParsedStatement(StatementEffect.COMMIT)
    if first == "ROLLBACK":
        return ParsedStatement(StatementEffect.ROLLBACK_TO if "TO" in words else StatementEffect.ROLLBACK)
    if first in _CHANGES_ROWS:
        return ParsedStatement(StatementEffect.ROWS)
    if first == "TRUNCATE":
        start = 2 if words[1:2] == ["TABLE"] else 1
        return ParsedStatement(StatementEffect.EMPTIES, _names(tokens[start:], statement.database)[:1])
    if first == "DROP":
        return _drop(tokens, words, statement.database)
    if words[:3] == ["CREATE", "OR", "REPLACE"] and words[3:4] == ["TABLE"]:
        return ParsedStatement(StatementEffect.EMPTIES, _names(tokens[4:], statement.database)[:1])
    if first == "RENAME" and words[1:2] in (["TABLE"], ["TABLES"]):
        return _rename(_names(_without_existence(tokens[2:]), statement.database))
    if first == "ALTER":
        return _alter(tokens, words, statement.database)
    return _NOTHING


def _drop(tokens: list[_Token], words: list[str], database: str) -> ParsedStatement:
    if words[1:2] in (["TABLE"], ["TABLES"]):
        return ParsedStatement(StatementEffect.EMPTIES, _names(_without_existence(tokens[2:]), database))
    if words[1:2] in (["DATABASE"], ["SCHEMA"]):
        rest = _without_existence(tokens[2:])
        return ParsedStatement(StatementEffect.DROPS_DATABASE, database=(rest[0].name or "") if rest else database)
    return _NOTHING


def _rename(names: tuple[TableName, ...]) -> ParsedStatement:
    old, new = names[::2], names[1::2]
    # Names on both sides change tables with another one, as tools for schema changes do: its rows are the same.
    moved = tuple(name for name in names if (name in old) != (name in new))
    return ParsedStatement(StatementEffect.REPLACES, moved) if moved else _NOTHING


def _alter(tokens: list[_Token], words: list[str], database: str) -> ParsedStatement:
    if "TABLE" not in words[1:4]:
        return _NOTHING
    start = words.index("TABLE") + 1
    rest = _without_existence(tokens[start:])
    found = list(_names(rest, database)[:1])
    pairs = list(zip(words[start:], words[start + 1 :], strict=False))
    changes = any(pair in pairs for pair in _PARTITION_CHANGES) or "IGNORE" in words[1:start]
    for index, (one, other) in enumerate(pairs):
        after = tokens[start + index + 1 :]
        if (one, other) == ("WITH", "TABLE") or (one, other) == ("CONVERT", "TABLE"):
            found += _names(after[1:], database)[:1]
        elif one == "RENAME" and other not in ("COLUMN", "INDEX", "KEY"):
            found += _names(after[1:] if other in ("TO", "AS", "=") else after, database)[:1]
            changes = True
    return ParsedStatement(StatementEffect.REPLACES, tuple(found)) if changes else _NOTHING


def _without_existence(tokens: list[_Token]) -> list[_Token]:
    return tokens[2:] if [token.text for token in tokens[:2]] == ["IF", "EXISTS"] else tokens


def _names(tokens: Sequence[_Token], database: str) -> tuple[TableName, ...]:
    """Return the names of tables in a list of them; whatever separates them is skipped."""
    found: list[TableName] = []
    at = 0
    while at < len(tokens):
        name = tokens[at].name
        if name is None or tokens[at].text in ("TO", "WAIT", "NOWAIT", "RESTRICT", "CASCADE"):
            at += 1
        elif at + 2 < len(tokens) and tokens[at + 1].text == "." and tokens[at + 2].name is not None:
            found.append((name, tokens[at + 2].name or ""))
            at += 3
        else:
            found.append((database, name))
            at += 1
    return tuple(found)


def _tokens(sql: str, *, ansi_quotes: bool) -> Iterator[_Token]:
    for found in _TOKEN.finditer(sql):
        text = found.group()
        match found.lastgroup:
            case "word":
                yield _Token(text.upper(), text)
            case "quoted":
                yield _Token("`", text[1:-1].replace("``", "`"))
            case "double" if ansi_quotes:
                yield _Token('"', text[1:-1].replace('""', '"'))
            case "double" | "text":
                yield _Token("'")
            case "mark":
                yield _Token(text)
            case _:
                pass

"""Dialect and SqlSession: where SQLite and PostgreSQL differ. All other SQL of a store is written once, for both.

Statements have `?` in place of their parameters, keep to what both databases understand, and take the rest from the
session's dialect.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec


class Dialect(msgspec.Struct, frozen=True):
    """What the two databases write in different ways."""

    placeholder: str
    """In the place of a parameter."""
    lock_rows: str
    """The end of a SELECT that locks the rows it finds until the transaction ends."""
    text_position: str
    """The function that finds a text in another: 0 when it is not there."""
    json_array: str
    """A table with a column `value` made of the JSON array `{}`."""
    no_limit: str
    """In the place of a LIMIT where an OFFSET stands alone."""
    allows_nul: bool
    """Whether text may have a character U+0000."""


class SqlSession(ABC):
    """Statements in one transaction on one connection."""

    dialect: ClassVar[Dialect]

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock that all processes which share the database use."""

    @abstractmethod
    def run(self, sql: str, *parameters: object) -> int:
        """Run one statement; returns how many rows it changed."""

    @abstractmethod
    def rows(self, sql: str, *parameters: object) -> list[Any]:
        """The rows that a statement returns."""

    def value(self, sql: str, *parameters: object) -> Any:
        """The value that a statement returns, in one row of one column."""
        [(value,)] = self.rows(sql, *parameters)
        return value

    def text(self, text: str) -> str:
        """The text as the database can hold it: a NUL may have to be shown by another character."""
        return text if self.dialect.allows_nul else text.replace("\0", "␀")


def upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """A statement that inserts a row, or changes these columns of the row with the same key."""
    marks = ", ".join("?" * (len(key) + len(columns)))
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
    return (
        f"INSERT INTO {table} ({', '.join(key + columns)}) VALUES ({marks})"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )

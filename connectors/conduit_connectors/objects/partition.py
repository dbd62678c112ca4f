"""PartitionBy: which folder of a dataset a row belongs to, as `name=value/`, whatever the value is."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import quote

from conduit_py.sdk import RecordRefused

_TIME = re.compile(r"(year|month|day|hour)\((.+)\)", re.DOTALL)
_FORMS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_NULL = "__HIVE_DEFAULT_PARTITION__"
_NAME_MAX = 255
"""What file systems allow. Names are escaped, so each character is one byte."""
_FOLDER_MAX = 700
"""A key of S3 has at most 1024 bytes: the rest is for the folder of the dataset and the name of a file."""


class PartitionBy:
    """Fields by which rows are put into folders, or a part of their time: `["country", "day(at)"]`.

    A field that is a folder is not in the files too: readers take it from the folder. A time stays in them, and
    its folder is named for both: `at_day=2026-11-17`. The text of a value is escaped, so it can name no other folder.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._parts: list[tuple[str, str, str | None]] = []
        self.dropped: list[str] = []
        """The fields that are in the folders only."""
        for text in fields:
            found = _TIME.fullmatch(text)
            if found is None:
                self.dropped.append(text)
                self._parts.append((_escape(text), text, None))
            else:
                self._parts.append((_escape(f"{found[2]}_{found[1]}"), found[2], _FORMS[found[1]]))
        names = [name for name, _, _ in self._parts]
        if len(set(names)) < len(names):
            raise ValueError("a partition is named twice")

    def __bool__(self) -> bool:
        return bool(self._parts)

    def folder_of(self, row: Mapping[str, Any]) -> str:
        """Return the folder, with a slash behind it. Raises RecordRefused if a value cannot name one."""
        made = ""
        for name, field, form in self._parts:
            if field not in row:
                raise RecordRefused(f"it has no field {field!r}, which says which folder it belongs to")
            folder = f"{name}={_value_text(field, row[field], form)}"
            # Folders are made after the commit: an error then could be repaired by nobody.
            if len(folder) > _NAME_MAX:
                raise RecordRefused(f"{field!r} is too long for the name of a folder")
            made += f"{folder}/"
        if len(made) > _FOLDER_MAX:
            raise RecordRefused("the names of its folders are too long together")
        return made


def _escape(text: str) -> str:
    try:
        return quote(text, safe=" ")
    except UnicodeEncodeError as error:
        raise RecordRefused("a value that names a folder is no valid Unicode") from error


def _value_text(field: str, value: Any, form: str | None) -> str:
    if value is None:
        return _NULL
    if form is not None:
        return _escape(_time_of(field, value).strftime(form))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return _escape(value.isoformat())
    if isinstance(value, str | int):
        text = str(value)
        # Invariant 12: readers take an empty name, or this one, for null.
        if not text or text == _NULL:
            raise RecordRefused(f"{field!r} is {text!r}, which as a folder would be null")
        return _escape(text)
    raise RecordRefused(f"{field!r} is of type {type(value).__name__}, which cannot name a folder")


def _time_of(field: str, value: Any) -> date:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise RecordRefused(f"{field!r} is no time: {value[:40]!r}") from error
    if isinstance(value, date):
        return value
    raise RecordRefused(f"{field!r} is of type {type(value).__name__}, not a time")

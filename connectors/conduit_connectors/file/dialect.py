"""How CSV files are written down: the options that the source and the destination share."""

from typing import Annotated

from pydantic import AfterValidator, Field


def repeated(names: list[str]) -> list[str]:
    """The names that occur more than once, in order."""
    return [name for index, name in enumerate(names) if name in names[:index]]


def _distinct(names: list[str]) -> list[str]:
    if twice := repeated(names):
        raise ValueError(f"names must differ, but {', '.join(map(repr, twice))} is there more than once")
    return names


Delimiter = Annotated[
    str,
    Field(
        pattern=r'^[^"\r\n]$', description='what separates the fields of a CSV row: one character, not " or a line end'
    ),
]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
"""The names of the columns, in order, each once."""

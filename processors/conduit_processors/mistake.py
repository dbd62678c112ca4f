"""Mistake: an error in what a user wrote for an option, in our words instead of pydantic's."""

from pydantic_core import PydanticCustomError


def mistake(message: str) -> ValueError:
    """An error to raise while options are checked: says what must be; pydantic adds what was written."""
    # Passed as a value, because pydantic's message is a format string and ours may contain braces.
    return PydanticCustomError("option", "{message}", {"message": message})

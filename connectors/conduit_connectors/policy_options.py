"""The options of destinations with typed columns for fields and values that do not fit: `on_new_field` and `on_type`.

The words are the same for all destinations. What a format cannot do is a problem of the definition, with the reason.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias, TypedDict

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from conduit_py.sdk import Options

OnNewField: TypeAlias = Literal["refuse", "add", "ignore"]
OnType: TypeAlias = Literal["refuse", "widen", "text"]
NewFieldOption: TypeAlias = Annotated[
    OnNewField,
    Field(description='a field that has no column: "refuse" the record, "add" the column, or "ignore" the field'),
]
"""The type of the option `on_new_field`, with its description, where it means this."""


class PolicyOptions(Options):
    """The options of destinations that write Arrow tables: what happens to a record that does not fit the columns."""

    impossible: ClassVar[Mapping[tuple[str, str], str]] = {}
    """Which values of the options a destination cannot carry out, and why."""

    on_new_field: NewFieldOption = "refuse"
    on_type: OnType = Field(
        default="refuse",
        description='a value that its column does not hold: "refuse" the record, "widen" the column to a type that'
        ' holds it exactly, or "text": as "widen", and a column of text gets the value as text',
    )

    @field_validator("on_new_field", "on_type")
    @classmethod
    def _is_possible(cls, value: str, info: ValidationInfo) -> str:
        if reason := cls.impossible.get((info.field_name or "", value)):
            words = ("refuse", "add", "ignore") if info.field_name == "on_new_field" else ("refuse", "widen", "text")
            left = " or ".join(f'"{word}"' for word in words if (info.field_name or "", word) not in cls.impossible)
            raise PydanticCustomError(
                "impossible", "{reason}", {"reason": reason, "suggestion": f"use {left}, or change the table yourself"}
            )
        return value

    @model_validator(mode="after")
    def _has_one_spelling(self) -> Self:
        if {"drift", "on_new_field"} <= self.model_fields_set:
            raise PydanticCustomError(
                "two_spellings",
                "`drift` is the old name of `on_new_field`, and both are given",
                {"suggestion": "leave `drift` out"},
            )
        return self

    @property
    def old_spelling(self) -> str | None:
        """The value of `drift`, which some destinations still take."""
        return None

    @property
    def ignores_new_fields(self) -> bool:
        """True if fields without a column are left out, by the new spelling or the old one."""
        return "ignore" in (self.on_new_field, self.old_spelling)

    @property
    def changes_columns(self) -> bool:
        """True if records may add or widen columns."""
        return self.on_new_field == "add" or self.on_type != "refuse"


OLD_SPELLING: Final = 'deprecated: write on_new_field="ignore" for "ignore", and leave out "refuse"'
DEPRECATED: Final[JsonDict] = {"deprecated": True}
"""What marks an option for which `check` warns with its description."""


class PolicyArguments(TypedDict, total=False):
    """PolicyOptions as a caller writes them, for editors and type checkers."""

    on_new_field: OnNewField
    on_type: OnType

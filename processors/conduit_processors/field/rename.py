"""`field.rename` gives fields other names."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from conduit_py.sdk import Options, Processor, Record, RecordRefused, Structured
from conduit_py.sdk.template.field_path import FieldPath, kind
from conduit_py.sdk.template.field_syntax import field_path_error, format_path, split_outside_quotes
from conduit_py.sdk.text_option import option_error


def _checked(value: object, check: ValidatorFunctionWrapHandler) -> dict[FieldPath, str]:
    """The mapping from a dict or from Conduit's `reference:name,reference:name`, each field named once."""
    pairs = _pairs(value) if isinstance(value, str) else list(value.items()) if isinstance(value, dict) else []
    if not pairs:
        raise option_error("must be a dict of references and new names, or a text such as .Payload.After.old:new")
    mapping: dict[FieldPath, str] = check(dict(pairs))
    if len(mapping) != len(pairs):
        raise option_error("must give each field one new name")
    targets = Counter((reference.parent, name) for reference, name in mapping.items())
    (parent, name), count = targets.most_common(1)[0]
    if count > 1:
        raise option_error(f"must give each field a name of its own (two become {_spell(parent, name)})")
    return mapping


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [split_outside_quotes(pair, ":") for pair in split_outside_quotes(text, ",")]
    if any(len(pair) != 2 for pair in pairs):
        raise option_error("must be pairs such as .Payload.After.old:new, with commas between them")
    return [(old, new) for old, new in pairs]


def _field(reference: FieldPath) -> FieldPath:
    if not reference.path:
        raise field_path_error("the parts of a record keep their names; rename a field inside one")
    return reference


def _name(name: str) -> str:
    if not name.strip():
        raise option_error("must be a name")
    if name.startswith("."):
        raise option_error("must be the new name alone, as in .Payload.After.old:new")
    return name


class RenameOptions(Options):
    """Options of field.rename."""

    mapping: Annotated[
        dict[Annotated[FieldPath, AfterValidator(_field)], Annotated[str, AfterValidator(_name)]],
        WrapValidator(_checked),
    ] = Field(description="reference to new name, as a dict or as text: .Payload.After.old:new,.Key.a:b")


class Rename(Processor[RenameOptions]):
    """Gives fields new names where they are; a field keeps its place among the others.

    All fields are renamed at once, so two can swap names. A record that lacks one of the fields, or has
    a field of the new name already, is refused.
    """

    blocking = False
    _holders: list[tuple[FieldPath, dict[str, str]]]

    def open(self) -> None:
        holders: dict[FieldPath, dict[str, str]] = {}
        for reference, name in self.options.mapping.items():
            holders.setdefault(reference.parent, {})[reference.path[-1]] = name
        self._holders = list(holders.items())

    def process(self, record: Record) -> Record:
        # All are checked before any changes, so that a refused record is as it came.
        renamed = [_renamed(parent, names, record) for parent, names in self._holders]
        for before, after in renamed:
            before.clear()
            before.update(after)
        return record


def _renamed(parent: FieldPath, names: dict[str, str], record: Record) -> tuple[Structured, Structured]:
    """The fields that some of `names` are among, and what they should become."""
    fields = parent.get(record)
    if not isinstance(fields, dict) or not names.keys() <= fields.keys():
        raise _missing(parent, names, fields)
    before: Structured = fields
    after = {names.get(name, name): value for name, value in before.items()}
    if len(after) != len(before):
        raise _taken(parent, names, before)
    return before, after


def _missing(parent: FieldPath, names: Iterable[str], fields: object) -> RecordRefused:
    if not isinstance(fields, dict):
        suggestion = "decode it first, for example with conduit_processors.json.Decode"
        raw = isinstance(fields, (bytes, str))
        message = f"cannot rename fields of {parent}: it is {kind(fields)}"
        return RecordRefused(message, suggestion=suggestion if raw else None)
    name = next(name for name in names if name not in fields)
    return RecordRefused(f"cannot rename {_spell(parent, name)}: the record has no such field")


def _taken(parent: FieldPath, names: dict[str, str], fields: Structured) -> RecordRefused:
    old, new = next((old, new) for old, new in names.items() if new in fields and new not in names)
    where = _spell(parent, old)
    return RecordRefused(f"cannot rename {where} to {new!r}: {parent} has a field of that name")


def _spell(parent: FieldPath, name: str) -> str:
    return format_path(parent.root, (*parent.path, name))

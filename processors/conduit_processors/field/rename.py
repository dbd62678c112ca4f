"""`field.rename` gives fields other names."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Required, TypedDict, Unpack

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from conduit_py.sdk import Options, Processor, Record, RecordRefused, Structured, Unchanged
from conduit_py.sdk.template import FieldPath, RecordPart, field_path_error, kind_of, option_error, split_outside_quotes


def _check_mapping(value: object, check: ValidatorFunctionWrapHandler) -> dict[FieldPath, str]:
    """The mapping from a dict or from Conduit's `path:name,path:name`, each field named once."""
    pairs = _pairs(value) if isinstance(value, str) else list(value.items()) if isinstance(value, dict) else []
    if not pairs:
        raise option_error("must be a dict of field paths and new names, or a text such as .Payload.After.old:new")
    mapping: dict[FieldPath, str] = check(dict(pairs))
    if len(mapping) != len(pairs):
        raise option_error("must give each field one new name")
    targets = Counter((path.parent, name) for path, name in mapping.items())
    (parent, name), count = targets.most_common(1)[0]
    if count > 1:
        raise option_error(f"must give each field a name of its own (two become {_field_path(parent, name)})")
    return mapping


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [split_outside_quotes(pair, ":") for pair in split_outside_quotes(text, ",")]
    if any(len(pair) != 2 for pair in pairs):
        raise option_error("must be pairs such as .Payload.After.old:new, with commas between them")
    return [(old, new) for old, new in pairs]


def _field(path: FieldPath) -> FieldPath:
    if not path.names:
        raise field_path_error("the parts of a record keep their names; rename a field inside one")
    return path


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
        WrapValidator(_check_mapping),
    ] = Field(description="field path to new name, as a dict or as text: .Payload.After.old:new,.Key.a:b")


class RenameArguments(TypedDict, total=False):
    """RenameOptions as a caller writes them, for editors and type checkers."""

    mapping: Required[Mapping[str, str] | str]


class Rename(Processor[RenameOptions]):
    """Gives fields new names where they are; a field keeps its place among the others.

    All fields are renamed at once, so two can swap names. A record that lacks one of the fields, or has
    a field of the new name already, is refused.
    """

    blocking = False
    _holders: list[tuple[FieldPath, dict[str, str]]]

    def __init__(self, **options: Unpack[RenameArguments]) -> None:
        super().__init__(**options)

    @property
    def takes(self) -> Any:
        return dict if self._renames_payload() else Any

    @property
    def gives(self) -> Any:
        return dict if self._renames_payload() else Unchanged

    def _renames_payload(self) -> bool:
        return any(path.part is RecordPart.AFTER for path in self.options.mapping)

    def open(self) -> None:
        holders: dict[FieldPath, dict[str, str]] = {}
        for path, name in self.options.mapping.items():
            holders.setdefault(path.parent, {})[path.names[-1]] = name
        self._holders = list(holders.items())

    def process(self, record: Record) -> Record:
        # All are checked before any changes, so that a refused record is as it came.
        renamed = [_rename(parent, names, record) for parent, names in self._holders]
        for before, after in renamed:
            before.clear()
            before.update(after)
        return record


def _rename(parent: FieldPath, names: dict[str, str], record: Record) -> tuple[Structured, Structured]:
    """The fields that some of `names` are among, and what they should become."""
    fields = parent.get(record)
    if not isinstance(fields, dict) or not names.keys() <= fields.keys():
        raise _missing(parent, names, fields)
    before: Structured = fields
    after = {names.get(name, name): value for name, value in before.items()}
    if len(after) != len(before):
        raise _name_collision(parent, names, before)
    return before, after


def _missing(parent: FieldPath, names: Iterable[str], fields: object) -> RecordRefused:
    if not isinstance(fields, dict):
        suggestion = "decode it first, for example with conduit_processors.json.Decode"
        raw = isinstance(fields, (bytes, str))
        message = f"cannot rename fields of {parent}: it is {kind_of(fields)}"
        return RecordRefused(message, suggestion=suggestion if raw else None)
    name = next(name for name in names if name not in fields)
    return RecordRefused(f"cannot rename {_field_path(parent, name)}: the record has no such field")


def _name_collision(parent: FieldPath, names: dict[str, str], fields: Structured) -> RecordRefused:
    old, new = next((old, new) for old, new in names.items() if new in fields and new not in names)
    where = _field_path(parent, old)
    return RecordRefused(f"cannot rename {where} to {new!r}: {parent} has a field of that name")


def _field_path(parent: FieldPath, name: str) -> str:
    return str(parent.child(name))

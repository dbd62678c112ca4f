"""Reach: where the names after a dot lead in a record. Names that lead nowhere are mistakes of the template."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.options import did_you_mean
from conduit_py.sdk.template.errors import TemplateInvalid
from conduit_py.sdk.template.values import field_of, kind_of

Get: TypeAlias = Callable[[Record], Any]


def reach(names: Sequence[str], offset: int) -> Get:
    """A function from a record to what the names lead to in it: None where a field is absent."""
    if not names:
        return lambda record: record
    head, *rest = names
    if head == "Payload":
        return _payload(rest, offset)
    if head == "Metadata":
        return _metadata(rest, offset)
    if head in _SCALARS:
        return _scalar(head, rest, offset)
    if head == "Key":
        return _data(".Key", lambda record: record.key, rest)
    raise _no_part(f".{head}", head, _PARTS, offset)


def _payload(names: Sequence[str], offset: int) -> Get:
    if not names:
        return lambda record: {"before": record.payload.before, "after": record.payload.after}
    side, *rest = names
    if side == "After":
        return _data(".Payload.After", lambda record: record.payload.after, rest)
    if side == "Before":
        return _data(".Payload.Before", lambda record: record.payload.before, rest)
    raise _no_part(f".Payload.{side}", side, ["Before", "After"], offset)


def _metadata(names: Sequence[str], offset: int) -> Get:
    if not names:
        return lambda record: record.metadata
    name = names[0]
    if len(names) > 1:
        key = ".".join(names)
        hint = f'write index .Metadata "{key}"'
        raise TemplateInvalid(f"metadata is flat, so .Metadata.{key} leads nowhere", offset, hint)
    if name[:3] in ("Get", "Set") and name[3:4].isupper():
        hint = 'read the key: index .Metadata "opencdc.collection"'
        raise TemplateInvalid(f".Metadata.{name} is a method, which there are none of here", offset, hint)
    return lambda record: record.metadata.get(name)


def _scalar(head: str, names: Sequence[str], offset: int) -> Get:
    # In Go these are types of their own, which `.String` makes text of; here they are text already.
    if names not in ([], ["String"]):
        raise TemplateInvalid(f".{head} has no field {names[0]!r}", offset)
    return _SCALARS[head]


def _data(spelled: str, whole: Get, names: Sequence[str]) -> Get:
    if not names:
        return whole
    first, *rest = names

    def get(record: Record) -> Any:
        data = whole(record)
        if not isinstance(data, dict):
            raise _without_fields(spelled, first, data)
        value = data.get(first)
        for name in rest:
            value = field_of(value, name)
        return value

    return get


def _without_fields(spelled: str, name: str, data: Any) -> RecordRefused:
    hint = "decode it first, for example with the processor json.decode" if data is not None else None
    what = "absent" if data is None else kind_of(data)
    return RecordRefused(f"cannot read {spelled}.{name}: {spelled} is {what}, so it has no fields", suggestion=hint)


def _no_part(spelled: str, name: str, known: list[str], offset: int) -> TemplateInvalid:
    parts = ", ".join(f".{part}" for part in known)
    capitalised = name[:1].upper() + name[1:]
    hint = f"did you mean {capitalised!r}?" if capitalised in known else did_you_mean(name, known)
    return TemplateInvalid(f"a record has no {spelled}", offset, hint or f"it has {parts}")


_SCALARS: Final[dict[str, Get]] = {
    "Operation": lambda record: record.operation.value,
    "Position": lambda record: record.position,
}
_PARTS: Final = ["Key", "Metadata", "Operation", "Payload", "Position"]

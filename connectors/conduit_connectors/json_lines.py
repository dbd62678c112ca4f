"""JSON lines → payloads: by the block, straight into a type if one is wanted, and never a key lost silently."""

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, itemgetter, ne
from typing import Any

import msgspec

from conduit_connectors.line_formats import parse_each
from conduit_connectors.lines import Lines
from conduit_py.sdk import (
    JSON_DEPTH_MAX,
    DuplicateKeys,
    Payloads,
    Reading,
    RecordRefused,
    Structured,
    decode_json,
    is_too_deep,
    may_repeat_keys,
)

_decode_object = msgspec.json.Decoder(dict).decode
_CANNOT_DECODE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_COLON_FIELDS_MAX = 4


class JsonLines:
    """Parses lines that are a JSON object each, or blank; the object is `payload.after`.

    With `payload_type` a line that fits is decoded straight into that type. A line that does not fit becomes a dict,
    whatever its neighbours are. With `duplicate_keys="refuse"` a line with a key twice in one object is refused.
    """

    def __init__(
        self, payload_type: type[msgspec.Struct] | None = None, duplicate_keys: DuplicateKeys = "refuse"
    ) -> None:
        self._payload_type = payload_type
        self._typed = msgspec.json.Decoder(payload_type).decode if payload_type is not None else None
        self._duplicate_keys = duplicate_keys
        self._decode_into(payload_type)
        self._may_narrow = payload_type is not None and _can_narrow(payload_type)

    def _decode_into(self, payload_type: type[msgspec.Struct] | None) -> None:
        self._kind: type = payload_type or dict
        self._decode = _decode_object if payload_type is None else msgspec.json.Decoder(payload_type).decode
        self._members = _MemberCount(payload_type)

    def parse(self, lines: Lines, positions: Sequence[bytes]) -> Reading:
        if not lines.long:
            try:
                # Line by line: `decode_lines` lets an object span lines, and a line have several.
                values = list(map(self._decode, lines.texts))
                if self._keeps_all(lines, values) and not _any_too_deep(lines):
                    kind = self._kind
                    if self._may_narrow and self._members.present:
                        self._narrow(self._members.present)
                    return Reading(Payloads(values, positions, kind), {})
            except _CANNOT_DECODE:
                if self._kind is not (self._payload_type or dict):
                    # Perhaps a line only lacks a field that those before it had.
                    self._decode_into(self._payload_type)
                    return self.parse(lines, positions)
                # A blank or bad line is rare, so a second pass over all lines finds it.
        parsed = parse_each(lines, positions, self._parse_one)
        return Reading(Payloads(parsed.values, parsed.positions), parsed.refused)

    def _keeps_all(self, lines: Lines, values: list[Any]) -> bool:
        return self._duplicate_keys == "last" or self._members.is_that_of(lines, values)

    def _narrow(self, present: Sequence[str]) -> None:
        """Require fields that lines have had so far. Whether a line has them then needs no look at each value."""
        assert self._payload_type is not None
        self._may_narrow = False
        self._decode_into(_with_required(self._payload_type, present))

    def _parse_one(self, text: bytes) -> Any:
        value: Structured = decode_json(text, duplicate_keys=self._duplicate_keys)
        if not isinstance(value, dict):
            raise RecordRefused(f"the line must be a JSON object, not {_JSON_NAMES[type(value)]}")
        if self._typed is not None:
            try:
                return self._typed(text)
            except _CANNOT_DECODE:
                # The processor that takes the type refuses it, with the reason.
                return value
        return value


def _any_too_deep(lines: Lines) -> bool:
    # Each level takes two brackets, so short lines need no look.
    if _all_short(lines.ends.sizes):
        return False
    # Decoded once more only if there are so many brackets: a type may hold deep values in its fields.
    suspects = (text for text in lines.texts if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX)
    return any(is_too_deep(text, _decode_object(text)) for text in suspects)


def _all_short(sizes: list[int]) -> bool:
    """Return True if no line has more than twice JSON_DEPTH_MAX bytes."""
    try:
        # A third of what `max` takes. It fails at the first size above 255.
        bytes(sizes)
    except ValueError:
        return max(sizes) <= 2 * JSON_DEPTH_MAX
    return True


class _MemberCount:
    """Tells whether lines have exactly the members that were decoded, so that decoding lost no repeated key.

    Every member has a colon in the line, and colons in texts, such as times, only add to them. The fields with such
    texts are mostly the same in all lines, so they are learned, and theirs are counted too. Where the fields do
    not tell, colons right behind a quote are counted, where few texts have one. Only then every value is encoded again.
    """

    def __init__(self, payload_type: type[msgspec.Struct] | None) -> None:
        self._getter: Any = itemgetter if payload_type is None else attrgetter
        fields = () if payload_type is None else msgspec.structs.fields(payload_type)
        self._required = None if payload_type is None else sum(field.required for field in fields)
        defaults = {field.name: _default(field) for field in fields if not field.required}
        # Where a missing field may differ from its default, no field counts as present: NaN does, and code may set it.
        is_plain = not hasattr(payload_type, "__post_init__")
        self._defaults = {name: each for name, each in defaults.items() if is_plain and each == each}
        # A colon that no line has, of a default or set by code, could replace a lost one.
        self._may_learn = is_plain and not any(type(each) is str and ":" in each for each in defaults.values())
        self._colon_fields: tuple[str, ...] = ()
        self._quotes_first = False
        """True if the learned fields did not tell: to look for two bytes takes longer than for one."""
        self.present: tuple[str, ...] = ()
        """The fields with a default that a line had, with another value."""

    def is_that_of(self, lines: Lines, values: list[Any]) -> bool:
        """Return True if no line repeats a key. False is nearly always a repeated key."""
        members = sum(map(len, values)) if self._required is None else self._count_typed(self._required, values)
        if self._quotes_first and _has_quoted_colons(b"".join(lines.texts), members):
            return True
        others = lines.count(b":") - members
        if others == 0 or (others > 0 and self._count_in_texts(lines, values) == others):
            return True
        text = b"".join(lines.texts)
        if not self._quotes_first and _has_quoted_colons(text, members):
            self._quotes_first = not self._learn(values[-1])
            return True
        decoded = values if self._required is None else list(map(_decode_object, text.splitlines()))
        if may_repeat_keys(text, decoded):
            return False
        self._learn(values[-1])
        return True

    def _count_typed(self, required: int, values: list[Any]) -> int:
        """Return how many members the lines have at least: a field with a default may be missing, or have it."""
        # Never too many: a field counted that was not there would hide a repeated one.
        count: int = required * len(values)
        for name in self.present:
            count += sum(map(ne, map(attrgetter(name), values), repeat(self._defaults[name])))
        return count

    def _count_in_texts(self, lines: Lines, values: list[Any]) -> int:
        # An escaped colon is none in the line, but one in the text that was decoded. It could replace a lost one.
        if not self._colon_fields or lines.has(b"\\"):
            return -1
        try:
            return sum("".join(map(self._getter(name), values)).count(":") for name in self._colon_fields)
        except (KeyError, AttributeError, TypeError):
            return -1

    def _learn(self, sample: Any) -> bool:
        """Note which fields of a line have colons or need no default; return True if a field with colons is new."""
        value: dict[str, Any] = sample if self._required is None else msgspec.structs.asdict(sample)
        found = (name for name, item in value.items() if type(item) is str and ":" in item)
        before = self._colon_fields
        if self._may_learn:
            self._colon_fields = tuple(dict.fromkeys([*before, *found]))[:_COLON_FIELDS_MAX]
        self.present = tuple(name for name, default in self._defaults.items() if value[name] != default)
        return self._colon_fields != before


def _has_quoted_colons(text: bytes, members: int) -> bool:
    """Return True if as many colons as there are members stand behind a quote, and none behind white space."""
    # Each member counts once, and a text that has a colon behind a quote only adds. So none is lost if the count is
    # right, unless a key with white space behind it is not counted.
    return text.count(b'":') == members and not _any_spaced_colon(text)


def _any_spaced_colon(text: bytes) -> bool:
    """Return True if a colon stands behind white space."""
    # One byte is found ten times as fast as two, and most lines have no tab, and many no space.
    return any(space in text and space + b":" in text for space in (b" ", b"\t", b"\r"))


def _can_narrow(payload_type: type[msgspec.Struct]) -> bool:
    """Return True if requiring a field changes nothing but what is decoded: not its name, and not what is encoded."""
    config = payload_type.__struct_config__
    is_plain = not config.omit_defaults and config.tag is None and not hasattr(payload_type, "__post_init__")
    return is_plain and all(field.encode_name == field.name for field in msgspec.structs.fields(payload_type))


def _with_required(payload_type: type[msgspec.Struct], names: Sequence[str]) -> type[msgspec.Struct]:
    """Return a subclass of the same name in which these fields have no default."""
    # All fields, not only these: the encoder writes them in the order in which they are defined.
    return msgspec.defstruct(
        payload_type.__name__,
        [_definition(field, required=field.name in names) for field in msgspec.structs.fields(payload_type)],
        bases=(payload_type,),
        module=payload_type.__module__,
        namespace={"__qualname__": payload_type.__qualname__, "__doc__": payload_type.__doc__},
        kw_only=True,
    )


def _definition(field: Any, *, required: bool) -> Any:
    if required or field.required:
        return field.name, field.type
    if field.default is msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type, msgspec.field(default=field.default)


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}

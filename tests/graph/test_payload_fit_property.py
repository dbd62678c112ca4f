"""No false alarm: of two types that are reported as a misfit, the second refuses every value of the first."""

import dataclasses
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import typing_extensions
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from conduit_py.payload_fit import misfits
from conduit_py.payload_type import PayloadType
from conduit_py.payloads import to_plain
from conduit_py.sdk import RecordRefused


class Inner(msgspec.Struct):
    x: int


class OtherInner(msgspec.Struct):
    x: int
    y: int


# pydantic takes the one of typing only from Python 3.12 on.
class InnerDict(typing_extensions.TypedDict):
    x: int


@dataclasses.dataclass
class InnerClass:
    x: str


NUMBERS = st.integers(-3, 3)
TEXTS = st.sampled_from(["", "1", "true", "x"])
# A bool is an int to a type checker, and an int is a float.
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS | st.booleans(),
    str: TEXTS,
    float: st.sampled_from([0.0, 1.0, 2.5]) | NUMBERS,
    bool: st.booleans(),
    list[int]: st.lists(NUMBERS, max_size=2),
    set[str]: st.sets(TEXTS, max_size=2),
    dict[str, int]: st.dictionaries(st.sampled_from("xy"), NUMBERS, max_size=2),
    int | None: st.none() | NUMBERS,
    str | int: TEXTS | NUMBERS,
    str | None: st.none() | TEXTS,
    Any: st.none() | NUMBERS | TEXTS,
    Inner: st.builds(Inner, NUMBERS),
    OtherInner: st.builds(OtherInner, NUMBERS, NUMBERS),
    InnerDict: st.fixed_dictionaries({"x": NUMBERS}, optional={"y": NUMBERS}),
    InnerClass: st.builds(InnerClass, TEXTS),
    bytes: st.binary(max_size=2),
}
FIELDS = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.sampled_from(list(VALUES)), st.booleans()), min_size=1, max_size=3
)
FORMS = ("struct", "sparse", "dataclass", "model", "open model", "typed dict")


def make_type(name: str, form: str, fields: dict[str, tuple[Any, bool]]) -> Any:
    """Make a type of these fields. Those with a default, None whatever their type, come last."""
    ordered = sorted(fields.items(), key=lambda item: item[1][1])
    if form in ("struct", "sparse"):
        parts = [(each, kind, None) if optional else (each, kind) for each, (kind, optional) in ordered]
        return msgspec.defstruct(name, parts, module=__name__, omit_defaults=form == "sparse")
    if form == "dataclass":
        return dataclasses.make_dataclass(
            name,
            [
                (each, kind, dataclasses.field(default=None)) if optional else (each, kind)
                for each, (kind, optional) in ordered
            ],
        )
    if form == "typed dict":
        return TypedDict(  # type: ignore[operator]
            name, {each: NotRequired[kind] if optional else kind for each, (kind, optional) in ordered}
        )
    config = pydantic.ConfigDict(extra="allow" if form == "open model" else None, arbitrary_types_allowed=True)
    members: dict[str, Any] = {each: (kind, None if optional else ...) for each, (kind, optional) in ordered}
    return pydantic.create_model(name, __config__=config, **members)


def make_value(draw: st.DrawFn, kind: Any, form: str, fields: dict[str, tuple[Any, bool]]) -> Any:
    """Make a value as a type checker would allow it: a TypedDict and an open model may have further keys."""
    values = {each: draw(VALUES[declared]) for each, (declared, optional) in fields.items()}
    for each, (_, optional) in fields.items():
        if optional and draw(st.booleans()):
            del values[each]
    if form in ("typed dict", "open model"):
        values = {**draw(st.dictionaries(st.sampled_from("abcd"), NUMBERS, max_size=2)), **values}
    if "model" in form:
        return kind.model_construct(**values)
    return values if form == "typed dict" else kind(**values)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    first, second = draw(FIELDS), draw(FIELDS)
    # Mostly alike, as types of neighbours are: else every pair would differ in many fields at once.
    if draw(st.booleans()):
        second = {**first, **dict(list(second.items())[:1])}
    one, other = draw(st.sampled_from(FORMS)), draw(st.sampled_from(FORMS))
    given_type = make_type("Given", one, first)
    taken_type = make_type("Taken", other, second)
    values = [make_value(draw, given_type, one, first) for _ in range(3)]
    return given_type, taken_type, values


def is_refused(value: Any, taken: PayloadType) -> bool:
    try:
        taken.convert(value)
    except RecordRefused:
        return True
    return False


@given(drawn=pairs())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_reported_is_refused_for_every_value(drawn: tuple[Any, Any, list[Any]]) -> None:
    given_type, taken_type, values = drawn
    try:
        taken = PayloadType(taken_type)
    except TypeError:
        return
    reasons = misfits(given_type, taken_type)
    event("misfit" if reasons is not None else "fits")
    if reasons is None:
        return

    for value in values:
        # As the value itself, and as it is in a record, where something on the way asked for records.
        assert is_refused(value, taken), (reasons, value)
        assert is_refused(to_plain(value), taken), (reasons, value)

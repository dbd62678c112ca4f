"""Hypothesis strategies for the values that flow, and for scripts that a pipeline must survive."""

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from conduit_py.batch import Batch, Piece, Span
from conduit_py.errors import TransientError
from conduit_py.record import Data, Operation, Payload, Record, Structured
from conduit_py.sdk.destination import AckMode
from conduit_py.testing.script import (
    AwaitFlush,
    Delay,
    Fail,
    Idle,
    OnAck,
    OnAnswer,
    OnFlush,
    Refuse,
    ScriptStep,
    Steps,
)

T = TypeVar("T")

# Strategies are made once: to make and to validate one costs more than many draws from it.
# Lone surrogates are not text that any encoding could carry.
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_operations = st.sampled_from(Operation)
_metadata = st.dictionaries(_text, _text, max_size=3)


@cache
def json_values() -> st.SearchStrategy[Any]:
    """Values that come back from JSON as they went in: integers of any size, no NaN."""
    return _nested_values(_json_scalars())


@cache
def python_values() -> st.SearchStrategy[Any]:
    """Values of every Python type that a record carries from end to end within a process."""
    others = (
        st.binary(max_size=20),
        st.decimals(allow_nan=False, allow_infinity=False),
        st.datetimes(),
        st.datetimes(timezones=st.timezones()),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.uuids(),
        st.floats(allow_nan=False),
    )
    return _nested_values(_json_scalars() | st.one_of(others))


@cache
def structured_data(values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Structured]:
    """Structured data with fields of these values; JSON values by default."""
    return st.dictionaries(_text, json_values() if values is None else values, max_size=5)


@cache
def data(values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Data]:
    """Raw, structured or absent; empty raw data and empty structures are among them, and are not absent."""
    return st.none() | st.binary(max_size=50) | structured_data(values)


@cache
def positions() -> st.SearchStrategy[bytes]:
    """Positions as any source might have them: bytes without meaning, never empty."""
    return st.binary(min_size=1, max_size=16)


@st.composite
def records(draw: st.DrawFn, values: st.SearchStrategy[Any] | None = None) -> Record:
    """Records with everything a record can have."""
    return Record(
        position=draw(positions()),
        operation=draw(_operations),
        metadata=draw(_metadata),
        key=draw(data(values)),
        payload=Payload(before=draw(data(values)), after=draw(data(values))),
    )


@st.composite
def batches(
    draw: st.DrawFn, source: str = "source", *, size_max: int = 8, of: st.SearchStrategy[Record] | None = None
) -> Batch:
    """Batches as they arrive in the middle of a pipeline: parts of a span, some of them split into pieces.

    They hold small records by default: it is their shape that finds mistakes.
    """
    taken = draw(st.lists(positions(), min_size=1, max_size=size_max, unique=True))
    span = Span("pipeline", source, draw(st.integers(0, 10**6)), taken)
    sequences: list[int] = []
    pieces: list[Piece] = []
    for sequence in range(span.first, span.first + len(span)):
        for piece in draw(st.sampled_from(_WAYS_TO_ARRIVE)):
            sequences.append(sequence)
            pieces.append(piece)
    values = [draw(_small_records if of is None else of) for _ in sequences]
    return Batch(span, values, sequences, pieces if any(pieces) else None)


_small_records = st.builds(Record.of, st.fixed_dictionaries({"n": st.integers(0, 9)}))

# Filtered, whole, in two pieces, the first of them split again.
_WAYS_TO_ARRIVE: list[list[Piece]] = [[()], [], [(0,), (1,)], [(0, 0), (0, 1), (1,)]]


def chunks() -> st.SearchStrategy[list[int]]:
    """How many records, or answers, an end gives at a time."""
    return st.lists(st.integers(1, 5), max_size=4)


def seeds() -> st.SearchStrategy[int]:
    """Seeds for `simulate`: each is another order in which the tasks run."""
    return st.integers(0, 2**32 - 1)


def source_scripts(count: int, *, refusals: bool = True, failures: bool = True) -> st.SearchStrategy[dict[int, Steps]]:
    """Scripts for a source of `count` records that a pipeline with enough recoveries must survive."""
    steps: list[st.SearchStrategy[ScriptStep]] = [_delays(), st.builds(Idle, st.integers(1, 3)), _on(OnAck, _delays())]
    if refusals:
        steps.append(st.just(Refuse("unreadable")))
    if failures:
        steps += [_failures(), _on(OnAck, _failures())]
    return _scripts(count, steps)


def destination_scripts(
    count: int, acks: AckMode = AckMode.WRITE, *, refusals: bool = True, failures: bool = True
) -> st.SearchStrategy[dict[int, Steps]]:
    """Scripts for a destination that sees `count` records, likewise; late and disordered answers among them."""
    steps: list[st.SearchStrategy[ScriptStep]] = [_delays()]
    if refusals:
        steps.append(st.just(Refuse("refused")))
    if failures:
        steps.append(_failures())
    if acks is AckMode.FLUSH:
        steps += [_on(OnFlush, _delays()), *([_on(OnFlush, _failures())] if failures else [])]
    if acks is AckMode.LATER:
        steps += [_on(OnAnswer, _delays()), st.just(OnAnswer(AwaitFlush()))]
        steps += [_on(OnAnswer, _failures())] if failures else []
    return _scripts(count, steps)


@st.composite
def interleavings(draw: st.DrawFn, *sequences: Sequence[T]) -> list[T]:
    """All items of the sequences in one list, each sequence in its own order."""
    rest = [list(sequence) for sequence in sequences if sequence]
    merged: list[T] = []
    while rest:
        chosen = draw(st.sampled_from(range(len(rest)))) if len(rest) > 1 else 0
        merged.append(rest[chosen].pop(0))
        rest = [sequence for sequence in rest if sequence]
    return merged


def _json_scalars() -> st.SearchStrategy[Any]:
    return st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text


def _nested_values(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
        max_leaves=8,
    )


@cache
def _delays() -> st.SearchStrategy[ScriptStep]:
    # Ties are where interleavings differ, so few different delays find more than many.
    return st.builds(Delay, st.sampled_from([0.001, 0.02, 0.5, 3.0]))


@cache
def _failures() -> st.SearchStrategy[ScriptStep]:
    errors = st.sampled_from([TransientError, OSError])
    return st.builds(Fail, st.just("scripted failure"), errors, st.integers(1, 2))


def _on(
    wrapper: type[OnAck] | type[OnFlush] | type[OnAnswer], steps: st.SearchStrategy[ScriptStep]
) -> st.SearchStrategy[ScriptStep]:
    return steps.map(wrapper)


def _scripts(count: int, steps: list[st.SearchStrategy[ScriptStep]]) -> st.SearchStrategy[dict[int, Steps]]:
    some = st.lists(st.one_of(steps), min_size=1, max_size=2).map(tuple)
    return st.dictionaries(st.integers(0, max(0, count - 1)), some, max_size=min(count, 6))

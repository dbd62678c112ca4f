"""Payload calls: call a processor that takes payloads with records, with payloads of another type, or with a batch."""

from collections.abc import Callable
from typing import Any

from conduit_py.batch import Batch
from conduit_py.errors import RecordRefused
from conduit_py.payload_type import PayloadType
from conduit_py.payloads import is_payload, to_plain
from conduit_py.record import Payload, Record


def on_any(call: Callable[[Any], Any], convert: Callable[[Any], Any], *, is_async: bool) -> Callable[[Any], Any]:
    """Call with a payload of another type."""

    async def once_async(value: Any) -> Any:
        return await call(convert(value))

    return once_async if is_async else lambda value: call(convert(value))


def on_record(
    call: Callable[..., Any], kind: PayloadType | None, *, is_async: bool, metadata: bool
) -> Callable[..., Any]:
    """Call with the payload of a record, or with its metadata too; the result becomes one about the record."""

    def arguments(record: Record) -> tuple[Any, dict[str, Any]]:
        value = record if kind is None else kind.convert(record.payload.after)
        return value, {"metadata": record.metadata} if metadata else {}

    def once(record: Record, *more: Any) -> Any:
        value, named = arguments(record)
        return _about(record, call(value, *more, **named))

    async def once_async(record: Record, *more: Any) -> Any:
        value, named = arguments(record)
        return _about(record, await call(value, *more, **named))

    return once_async if is_async else once


def _about(record: Record, result: Any) -> Any:
    """Return the result about a payload as one about the record that has it."""
    if isinstance(result, list):
        return [_piece(record, value) if is_payload(type(value)) else value for value in result]
    if not is_payload(type(result)):
        return result
    record.payload.after = to_plain(result)
    return record


def _piece(record: Record, value: Any) -> Record:
    payload = Payload(record.payload.before, to_plain(value))
    return Record(record.position, record.operation, dict(record.metadata), record.key, payload)


def on_batch(
    call: Callable[..., Any], kind: PayloadType | None, *, is_async: bool, metadata: bool
) -> Callable[..., Any]:
    """Call with the payloads of a batch of records; the results become results about the records."""
    assert kind is not None
    assert not metadata

    def once(batch: Batch, *more: Any) -> Any:
        results = on_payloads(call, kind, batch, more, is_async=False)(batch.payloads)
        return list(map(_about, batch.records, results)) if len(results) == len(batch) else results

    async def once_async(batch: Batch, *more: Any) -> Any:
        results = await on_payloads(call, kind, batch, more, is_async=True)(batch.payloads)
        return list(map(_about, batch.records, results)) if len(results) == len(batch) else results

    return once_async if is_async else once


def on_payloads(
    call: Callable[..., Any], kind: PayloadType, batch: Batch, more: tuple[Any, ...] = (), *, is_async: bool
) -> Callable[..., Any]:
    """Call once with those payloads that fit the type. The others are refused, and the call does not see them."""
    misfits: dict[int, Exception] = {}

    def fitting(values: list[Any]) -> list[Any]:
        if kind.accepts(batch.kind):
            return values
        fits = []
        for index, value in enumerate(values):
            try:
                fits.append(kind.convert(value))
            except RecordRefused as error:
                misfits[index] = error
        return fits

    def complete(results: Any) -> Any:
        if not misfits:
            return results
        rest = list(results)
        if len(rest) == len(batch) - len(misfits):
            for index in sorted(misfits):
                rest.insert(index, misfits[index])
        return rest

    async def once_async(values: list[Any]) -> Any:
        fits = fitting(values)
        return complete(await call(fits, *more) if fits else [])

    def once(values: list[Any]) -> Any:
        fits = fitting(values)
        return complete(call(fits, *more) if fits else [])

    return once_async if is_async else once

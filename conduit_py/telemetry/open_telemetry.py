"""OpenTelemetry: traces of batches and transactions, metrics and logs, sent by OTLP over HTTP.

The variables OTEL_* of the OpenTelemetry specification configure it. Exports run in threads of the SDK with bounded
queues: a collector that is slow or gone costs spans, never records.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cache, partial
from itertools import islice
from typing import Any

import trio
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation import get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from conduit_py import __version__, metadata
from conduit_py.batch import Batch
from conduit_py.batch import Span as BatchSpan
from conduit_py.defaults import OUR_PACKAGES
from conduit_py.errors import ConduitError
from conduit_py.exactly_once.gate import Sealed
from conduit_py.payloads import Payloads
from conduit_py.record import Record
from conduit_py.redaction import redact
from conduit_py.sdk.plugin import Plugin
from conduit_py.sdk.source import Reading, Records
from conduit_py.stream.commit import Task
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.reader import ReadBuffer
from conduit_py.stream.signal import Allowance
from conduit_py.stream.wiring import INSTRUMENTS, Instruments
from conduit_py.telemetry.metrics_text import OtlpMetrics

log = logging.getLogger("conduit_py")

END_SECONDS = 2.0
"""How long the end of a process waits for the last exports. A collector that is gone must not hold up a stop."""
RECORDS_LOOKED_AT_MAX, LINKS_MAX = 128, 16
BATCHES, DETAILED = (400, 400.0), (16, 20.0)
"""How many batches of a run have a span, at once and in a second, and how many also have one at each node.

Full batches are fewer, so each has one; of many small ones some have none. Those in a trace already have both.
"""
_PROPAGATOR = TraceContextTextMapPropagator()


@asynccontextmanager
async def open_telemetry(collect: Callable[[OtlpMetrics], object]) -> AsyncIterator[None]:
    """Observe the pipelines that begin in this block. `collect` adds the metrics, which are sent every minute."""
    traces, handler = trace_runs(), LogHandler()
    exporter = OTLPMetricExporter() if _exports("OTEL_METRICS_EXPORTER") else None
    started_ns = time.time_ns()

    async def send() -> None:
        points = OtlpMetrics(started_ns)
        try:
            collect(points)
            if exporter is not None:
                await trio.to_thread.run_sync(exporter.export, points.data(_resource()), abandon_on_cancel=True)
        except Exception:  # a boundary: an error of an observer must not end what it observes
            log.warning("metrics could not be sent", exc_info=True)

    async def send_often() -> None:
        text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
        while True:
            await trio.sleep(max(int(text) / 1000, 0.1) if text.isdecimal() else 60.0)
            await send()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_often)
            yield
            nursery.cancel_scope.cancel()
    finally:
        handler.detach()
        # Not longer than this, whatever the SDK waits for. Threads that are abandoned here end with the process.
        with trio.move_on_after(END_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                for shut_down in (traces.shutdown, handler.provider.shutdown):
                    nursery.start_soon(partial(trio.to_thread.run_sync, shut_down, abandon_on_cancel=True))


def begin_in_child() -> Callable[[], object]:
    """Trace the runs that begin in this process; return what sends the spans so far."""
    return trace_runs().force_flush


def trace_runs() -> TracerProvider:
    """Trace the runs that begin in this context."""
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    if _exports("OTEL_TRACES_EXPORTER"):
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        tracer = provider.get_tracer("conduit_py", __version__)
        INSTRUMENTS.set(lambda pipeline: TraceInstruments(tracer, pipeline))
    return provider


@cache
def _resource() -> Resource:
    """Return what the process says of itself, where the environment does not say it."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own: dict[str, Any] = {"service.version": __version__, "process.pid": os.getpid()}
    return Resource.create(own if named else own | {"service.name": "conduit-py"})


def _exports(variable: str) -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true" and os.environ.get(variable, "otlp") != "none"


class TraceInstruments(Instruments):
    """Traces one run: a span for each batch from its read to its ack, with one below it for each node that has it.

    A span has counts, names of nodes and codes of errors. It never has a part of a record, so no error message.
    """

    def __init__(self, tracer: Tracer, pipeline: str) -> None:
        self.tracer, self._pipeline = tracer, pipeline
        self._batches, self._detailed = Allowance(*BATCHES), Allowance(*DETAILED)
        self.open: dict[tuple[str, int], Span] = {}
        self._above: dict[tuple[str, int], Span] = {}
        """By source and first sequence, the span of each batch that is not released; those with spans of nodes."""
        self.traces: dict[str, list[Context]] = {}
        """By source, the traces of the records that are about to be registered."""
        self._clock_offset_ns = time.time_ns() - int(trio.current_time() * 1e9)

    def new_ledger(self, *args: Any, **settings: Any) -> Ledger:
        return TracedLedger(self, *args, **settings)

    def new_buffer(self, source: str, *args: Any, **settings: Any) -> ReadBuffer:
        return TracedReadBuffer(self.traces, source, *args, **settings)

    def new_processor(self, *args: Any) -> ProcessorNode:
        return TracedProcessor(self, *args)

    def new_writer_calls(self, node: str, connector: Plugin[Any]) -> PluginCaller:
        return TracedWrites(self, node, connector)

    def tasks(self) -> list[Task]:
        return [Task(self._pipeline, self._end_open, background=True)]

    async def _end_open(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            for span in self.open.values():
                span.set_status(Status(StatusCode.ERROR, "not settled: its records are read again"))
                span.end()

    def begin_batch(self, source: str, first: int, records: int, read_at: float) -> None:
        traces = self.traces.pop(source, [])
        if not (self._batches.take(read_at) or traces):
            return
        attributes = self._attributes(source) | {"messaging.batch.message_count": records}
        # In the trace of its records if that is one; a batch of several traces has a trace of its own, with links.
        above, linked = (traces[0], []) if len(traces) == 1 else (Context(), traces)
        links = [Link(get_current_span(each).get_span_context()) for each in linked]
        began_ns, name = self._clock_offset_ns + int(read_at * 1e9), f"batch {self._pipeline}"
        span = self.tracer.start_span(name, above, SpanKind.CONSUMER, attributes, links, began_ns)
        self.open[source, first] = span
        if self._detailed.take(read_at) or traces:
            self._above[source, first] = span

    def end_batches(self, source: str, before: int) -> None:
        """End the spans of the batches of a source whose first sequence is lower than this."""
        for key in [key for key in self.open if key[0] == source and key[1] < before]:
            self._above.pop(key, None)
            self.open.pop(key).end()

    def begin_step(self, step: str, node: str, span: BatchSpan, records: int) -> Span:
        """Begin a span of a node below that of the batch."""
        if (above := self._above.get((span.source, span.first))) is None:
            return INVALID_SPAN
        attributes = self._attributes(node) | {"messaging.batch.message_count": records}
        context, links = set_span_in_context(above, Context()), self._links(span.parts)[1:]
        kind = SpanKind.PRODUCER if step == "write" else SpanKind.INTERNAL
        return self.tracer.start_span(f"{step} {node}", context, kind, attributes, links)

    def _links(self, spans: Iterable[BatchSpan]) -> list[Link]:
        found = filter(None, (self.open.get((each.source, each.first)) for each in spans))
        return [Link(each.get_span_context()) for each in islice(found, LINKS_MAX)]

    def _attributes(self, node: str) -> dict[str, Any]:
        return {"conduit.pipeline": self._pipeline, "conduit.node": node}

    @contextmanager
    def observe_transaction(self, sealed: Sealed) -> Iterator[None]:
        links = self._links(each.span for ranges in sealed.ranges.values() for each in ranges)
        attributes: dict[str, Any] = {"conduit.records": sealed.records, "conduit.dead_letters": len(sealed.letters)}
        attributes["conduit.pipeline"] = self._pipeline
        span = self.tracer.start_span(f"transaction {self._pipeline}", Context(), attributes=attributes, links=links)
        with _ending(span):
            yield


@contextmanager
def _ending(span: Span, *, errors_only: bool = False) -> Iterator[None]:
    """End a span with its block; with `errors_only`, only if the block raises."""
    try:
        yield
    except BaseException as error:
        # The code, not the message: a message may quote the record that it is about.
        code = error.code if isinstance(error, ConduitError) else type(error).__name__
        span.set_status(Status(StatusCode.ERROR, code))
        span.end()
        raise
    if not errors_only:
        span.end()


class TracedLedger(Ledger):
    """A ledger in which a batch has a span from its registration to its release."""

    def __init__(self, tracing: TraceInstruments, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._tracing = tracing

    def register(self, positions: Sequence[bytes], read_at: float = 0.0) -> BatchSpan:
        span = super().register(positions, read_at)
        self._tracing.begin_batch(self._source, span.first, len(positions), read_at)
        return span

    def release(self, count: int) -> None:
        super().release(count)
        self._tracing.end_batches(self._source, next(iter(self._entries), self.next_sequence))


class TracedReadBuffer(ReadBuffer):
    """A buffer that notes to which traces the records belong that the dispatcher takes."""

    def __init__(self, traces: dict[str, list[Context]], source: str, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._traces, self._source = traces, source

    async def take(self) -> tuple[Reading, float] | None:
        taken = await super().take()
        if taken is not None:
            self._traces[self._source] = traces_of(taken[0].records)
        return taken


def traces_of(records: Records) -> list[Context]:
    """Return the traces of the first records, each once. Later ones are not looked at: a batch may have thousands."""
    found: dict[str, Context] = {}
    if isinstance(records, Payloads):
        looked_at: Iterable[Mapping[str, str]] = (records.columns and records.columns.metadata) or ()
    else:
        looked_at = (record.metadata for record in records if isinstance(record, Record))
    for each in islice(looked_at, RECORDS_LOOKED_AT_MAX):
        if each and (headers := metadata.trace_headers(each)) and headers[metadata.TRACEPARENT] not in found:
            found[headers[metadata.TRACEPARENT]] = _PROPAGATOR.extract(headers, Context())
            if len(found) == LINKS_MAX:
                break
    return list(found.values())


class TracedProcessor(ProcessorNode):
    """A processor node with a span for each batch that it processes."""

    def __init__(self, tracing: TraceInstruments, *args: Any) -> None:
        super().__init__(*args)
        self._tracing = tracing

    def apply(self, batch: Batch) -> Batch | Awaitable[Batch]:
        span = self._tracing.begin_step("process", self._context.node, batch.span, batch.count)
        with _ending(span, errors_only=True):
            applied = super().apply(batch)
        if not isinstance(applied, Batch):
            return self._finish(span, applied)
        span.end()
        return applied

    async def _finish(self, span: Span, applied: Awaitable[Batch]) -> Batch:
        with _ending(span):
            return await applied


class TracedWrites(PluginCaller):
    """Calls a destination, with a span for each write."""

    def __init__(self, tracing: TraceInstruments, node: str, connector: Plugin[Any]) -> None:
        super().__init__(node, connector)
        self._tracing, self._in_call = tracing, False

    async def __call__(self, name: str, *args: Any) -> Any:
        if name != "write":
            return await super().__call__(name, *args)
        # It may come to `call_here`, which must not begin a second span. Only one write runs at a time.
        self._in_call = True
        try:
            with _ending(self._begin(args[0])):
                return await super().__call__(name, *args)
        finally:
            self._in_call = False

    def call_here(self, name: str, *args: Any) -> Any:
        with nullcontext() if self._in_call else _ending(self._begin(args[0])):
            return super().call_here(name, *args)

    def _begin(self, batch: Batch) -> Span:
        return self._tracing.begin_step("write", self.node, batch.span, batch.count)


class LogHandler(logging.Handler):
    """Sends what our loggers log, without secrets, with the facts of the line as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = LoggerProvider(resource=_resource(), shutdown_on_exit=False)
        self._loggers = [logging.getLogger(name) for name in OUR_PACKAGES if _exports("OTEL_LOGS_EXPORTER")]
        if self._loggers:
            self.provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        for each in self._loggers:
            each.addHandler(self)

    def detach(self) -> None:
        for each in self._loggers:
            each.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            facts: dict[str, Any] = getattr(record, "facts", {})
            line = LogRecord(
                timestamp=int(record.created * 1e9),
                severity_text=record.levelname,
                severity_number=SeverityNumber(min(max(record.levelno // 10 * 4 + 1, 1), 21)),
                body=redact(record.getMessage()),
                attributes={name: redact(str(fact)) for name, fact in facts.items() if fact is not None},
            )
            self.provider.get_logger(record.name).emit(line)
        except Exception:  # a boundary that logging prescribes: a log line never stops the program
            self.handleError(record)

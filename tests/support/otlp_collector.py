"""OtlpCollector: a receiver of OTLP over HTTP on loopback, which parses what arrives with the official protobuf."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from http_peer import HttpPeer, PeerAnswer, PeerRequest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpCollector:
    """Keeps spans, metrics and lines of logs. Everything that arrived is also in `received`, as bytes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.lines: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.received = b""
        self._lock = threading.Lock()
        self._peer = HttpPeer(self._take)

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self._peer.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    @contextmanager
    def serving(self) -> Iterator["OtlpCollector"]:
        with self._peer.serving():
            yield self

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def _take(self, request: PeerRequest) -> PeerAnswer:
        body = gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body
        with self._lock:
            self.received += body
            {"/v1/traces": self._take_spans, "/v1/metrics": self._take_metrics, "/v1/logs": self._take_lines}[
                request.path
            ](body)
        return PeerAnswer(b"", headers={"content-type": "application/x-protobuf"})

    def _take_spans(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def _take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def _take_lines(self, body: bytes) -> None:
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                self.lines += scope.log_records


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}

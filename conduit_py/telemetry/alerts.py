"""Alerts: what somebody should be told about, as rules for Prometheus."""

import json
from dataclasses import dataclass
from typing import Literal

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import quantile, rate


@dataclass(frozen=True)
class Alert:
    """Fires when `value` has been as `bad` says for as long as `lasting` says."""

    name: str
    value: str
    """A query that always has an answer, good or bad: a rule over series that do not exist would be silent for ever."""
    bad: str
    lasting: str
    severity: Literal["critical", "warning"]
    summary: str
    description: str


def _has(status: str) -> str:
    return f'{metrics.PIPELINE_STATUS.name}{{status="{status}"}}'


_NACKED = rate(metrics.NACKED, by="pipeline_name", over="15m")
_READ = rate(metrics.READ, by="pipeline_name", over="15m")

ALERTS = (
    Alert(
        "ConduitServerGone",
        f"count({metrics.INFO.name}) or vector(0)",
        "== 0",
        "5m",
        "critical",
        "No conduit-py server is being scraped",
        "Nothing has reported conduit_info for 5 minutes: the server is down, or Prometheus cannot reach it.",
    ),
    Alert(
        "ConduitPipelineDegraded",
        _has("degraded"),
        "== 1",
        "1m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} is degraded: it does not start again by itself",
        "It will not start again by itself. Its error says why; once that is mended, start it.",
    ),
    Alert(
        "ConduitFileBroken",
        metrics.FILE_PROBLEMS.name,
        "> 0",
        "5m",
        "critical",
        "Pipeline files on {{ $labels.instance }} have problems",
        "{{ $value | humanize }} of them. A pipeline that was served keeps its last valid definition until the server "
        "restarts; one whose file was broken at the start does not run at all. `conduit-py pipelines list` has file, "
        "line and suggestion. Correct the file, check it with `conduit-py check FILE`, then run "
        "`conduit-py pipelines reload`.",
    ),
    Alert(
        "ConduitPipelineRecovering",
        f"increase({metrics.RECOVERIES.name}[15m])",
        "> 3",
        "0m",
        "warning",
        "Pipeline {{ $labels.pipeline_name }} keeps failing",
        "It was started again {{ $value | humanize }} times in 15 minutes. Its error says why.",
    ),
    Alert(
        "ConduitPipelineDown",
        _has("recovering"),
        "== 1",
        "15m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} has not run for 15 minutes",
        "It waits before it is started again, longer each time. Its error says why.",
    ),
    Alert(
        "ConduitPipelineStalled",
        metrics.PROGRESS_AGE.name,
        "> 300",
        "0m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} makes no progress",
        "It has had records to settle for {{ $value | humanizeDuration }} and settled none. "
        "Look at conduit_waiting for the node that holds it up.",
    ),
    Alert(
        "ConduitPipelineStopsSlowly",
        _has("stopping"),
        "== 1",
        "10m",
        "warning",
        "Pipeline {{ $labels.pipeline_name }} has been stopping for 10 minutes",
        "Some node does not finish. Stop it by force if that cannot wait: what is in flight will be read again.",
    ),
    Alert(
        "ConduitLatencyHigh",
        quantile(0.99, metrics.PIPELINE_DURATION, by="pipeline_name", over="5m"),
        "> 10",
        "10m",
        "warning",
        "Records of pipeline {{ $labels.pipeline_name }} take long",
        "One in a hundred takes more than {{ $value | humanizeDuration }} from when it is read until it is settled.",
    ),
    Alert(
        "ConduitDestinationTooSlow",
        f'avg_over_time({metrics.WAITING.name}{{reason="window"}}[15m])',
        "> 0.9",
        "15m",
        "warning",
        "Source {{ $labels.node }} of pipeline {{ $labels.pipeline_name }} is held up",
        "Its window was full for {{ $value | humanizePercentage }} of the last 15 minutes: "
        "what comes after it cannot keep up.",
    ),
    Alert(
        "ConduitLogRetained",
        metrics.LAG_RETAINED.name,
        "> 10e9",
        "15m",
        "critical",
        "The database behind {{ $labels.node }} of pipeline {{ $labels.pipeline_name }} keeps much log",
        "{{ $value | humanize1024 }}B since what this source has confirmed. A database whose disk is full stops. "
        "Mend the pipeline, or give up the replication slot: the source then needs a new snapshot.",
    ),
    Alert(
        "ConduitSchemaDrift",
        f"increase({metrics.DRIFT.name}[15m])",
        "> 0",
        "0m",
        "warning",
        "Records of pipeline {{ $labels.pipeline_name }} do not fit their schema at {{ $labels.node }}",
        "{{ $value | humanize }} in 15 minutes. The log names each change once. Change the schema or the table, "
        "or what happens then (on_drift, on_new_field).",
    ),
    Alert(
        "ConduitSourceFallsBehind",
        f"delta({metrics.LAG_BYTES.name}[30m])",
        "> 100e6",
        "30m",
        "warning",
        "Source {{ $labels.node }} of pipeline {{ $labels.pipeline_name }} falls behind",
        "It has {{ $value | humanize1024 }}B more to read than half an hour ago, and this has lasted as long: "
        "what comes after it cannot keep up.",
    ),
    Alert(
        "ConduitPartitionFallsBehind",
        f"delta({metrics.LAG_PARTITION.name}[30m])",
        "> 1000",
        "30m",
        "warning",
        "{{ $labels.partition }}, a partition of pipeline {{ $labels.pipeline_name }}, falls behind",
        "It has {{ $value | humanize }} more unread records than half an hour ago, and this has lasted as long. "
        "Add members to the group, or make the pipeline faster. If it is one partition of many, look at its keys.",
    ),
    Alert(
        "ConduitDeadLetters",
        f"increase({metrics.DEAD_LETTERED.name}[15m])",
        "> 0",
        "0m",
        "warning",
        "Pipeline {{ $labels.pipeline_name }} has new dead letters",
        "{{ $value | humanize }} in 15 minutes. Look at their errors; replay them once the cause is mended.",
    ),
    Alert(
        "ConduitManyRefused",
        f"{_NACKED} / {_READ}",
        "> 0.05",
        "5m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} refuses many records",
        "{{ $value | humanizePercentage }} of what was read in 15 minutes was refused.",
    ),
    Alert(
        "ConduitPersistSlow",
        quantile(0.99, metrics.PERSIST_DURATION, by="pipeline_name, node", over="5m"),
        "> 1",
        "10m",
        "warning",
        "Node {{ $labels.node }} of pipeline {{ $labels.pipeline_name }} is slow to make records durable",
        "One flush or save in a hundred takes more than {{ $value | humanizeDuration }}: "
        "look at the disk or the system behind it.",
    ),
    Alert(
        "ConduitFilesRunningOut",
        f"process_open_fds / process_max_fds and on (instance, job) {metrics.INFO.name}",
        "> 0.8",
        "5m",
        "warning",
        "The server on {{ $labels.instance }} is running out of file descriptors",
        "{{ $value | humanizePercentage }} are in use. Raise the limit (ulimit -n) or run fewer pipelines.",
    ),
)


def rules_text() -> str:
    """The alerts as a rule file of Prometheus."""
    head = "# Generated by `conduit-py dashboards export`.\ngroups:\n  - name: conduit-py\n    rules:\n"
    return head + "".join(map(_rule, ALERTS))


def _rule(alert: Alert) -> str:
    # A comparison binds more tightly than `and` and `or`.
    value = f"({alert.value})" if " and " in alert.value or " or " in alert.value else alert.value
    return (
        f"      - alert: {alert.name}\n"
        f"        expr: {_quoted(f'{value} {alert.bad}')}\n"
        f"        for: {alert.lasting}\n"
        f"        labels:\n"
        f"          severity: {alert.severity}\n"
        f"        annotations:\n"
        f"          summary: {_quoted(alert.summary)}\n"
        f"          description: {_quoted(alert.description)}\n"
    )


def _quoted(text: str) -> str:
    """A string of YAML: those of JSON are strings of YAML too."""
    return json.dumps(text, ensure_ascii=False)

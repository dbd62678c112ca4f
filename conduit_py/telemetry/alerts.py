"""Alerts: what an operator should look at, as rules for Prometheus."""

import json
from collections.abc import Callable
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


_PIPELINE = "job, pipeline_name"
"""What tells pipelines apart: jobs of Prometheus, such as production and test, may have pipelines of the same name."""


def _refused_over(over: str) -> str:
    return f"{rate(metrics.NACKED, by=_PIPELINE, over=over)} / {rate(metrics.READ, by=_PIPELINE, over=over)}"


def _slow_over(over: str) -> str:
    """The share of records that took more than 10 s."""
    name, by = metrics.PIPELINE_DURATION.name, f"sum by ({_PIPELINE})"
    quick = f'{by} (rate({name}_bucket{{le="10.0"}}[{over}]))'
    return f"1 - {quick} / {by} (rate({name}_count[{over}]))"


def _in_both(share: Callable[[str], str], long: str, short: str) -> str:
    """The smaller of two windows: above a limit if both are. The long one proves a cost, the short that it goes on."""
    marked = (f'label_replace({share(over)}, "over", "{over}", "", "")' for over in (long, short))
    return f"min by ({_PIPELINE}) ({' or '.join(marked)})"


def _burns(budget: str, pace: str, what: str) -> str:
    return f"{{{{ $value | humanizePercentage }}}} of its records {what}: {pace} the budget of {budget} in 30 days."


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
        "ConduitServerDown",
        f"up and on (instance, job) last_over_time({metrics.INFO.name}[1d])",
        "== 0",
        "5m",
        "critical",
        "Server {{ $labels.instance }} does not answer",
        "Prometheus has had no answer for 5 minutes from a server that was there within the last day.",
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
        quantile(0.99, metrics.PIPELINE_DURATION, by=_PIPELINE, over="5m"),
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
        _refused_over("15m"),
        "> 0.05",
        "5m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} refuses many records",
        "{{ $value | humanizePercentage }} of what was read in 15 minutes was refused.",
    ),
    Alert(
        "ConduitRefusalBudgetBurnsFast",
        _in_both(_refused_over, "1h", "5m"),
        "> 0.0144",
        "2m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} uses up its error budget in two days",
        _burns("0.1 %", "14.4 times", "were refused in the last hour, and still are"),
    ),
    Alert(
        "ConduitRefusalBudgetBurns",
        _in_both(_refused_over, "6h", "30m"),
        "> 0.006",
        "15m",
        "warning",
        "Pipeline {{ $labels.pipeline_name }} uses up its error budget in five days",
        _burns("0.1 %", "6 times", "were refused in the last six hours, and still are"),
    ),
    Alert(
        "ConduitLatencyBudgetBurnsFast",
        _in_both(_slow_over, "1h", "5m"),
        "> 0.144",
        "2m",
        "critical",
        "Pipeline {{ $labels.pipeline_name }} uses up its latency budget in two days",
        _burns("1 %", "14.4 times", "took more than 10 s in the last hour, and still do"),
    ),
    Alert(
        "ConduitLatencyBudgetBurns",
        _in_both(_slow_over, "6h", "30m"),
        "> 0.06",
        "15m",
        "warning",
        "Pipeline {{ $labels.pipeline_name }} uses up its latency budget in five days",
        _burns("1 %", "6 times", "took more than 10 s in the last six hours, and still do"),
    ),
    Alert(
        "ConduitSourceLate",
        metrics.LAG_SECONDS.name,
        "> 300",
        "10m",
        "warning",
        "Source {{ $labels.node }} of pipeline {{ $labels.pipeline_name }} is late",
        "What it reads now is {{ $value | humanizeDuration }} old. The pipeline is too slow, or was stopped for long.",
    ),
    Alert(
        "ConduitPersistSlow",
        quantile(0.99, metrics.PERSIST_DURATION, by=f"{_PIPELINE}, node", over="5m"),
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


RUNBOOK = "docs/operate/runbook.md"
"""Where the runbook is, if nobody says where its pages are served."""


def rules_text(runbook: str = RUNBOOK) -> str:
    """The alerts as a rule file of Prometheus. `runbook` is the address of the page that says what to do."""
    head = "# Generated by `conduit-py dashboards export`.\ngroups:\n  - name: conduit-py\n    rules:\n"
    return head + "".join(_rule(alert, runbook) for alert in ALERTS)


def _rule(alert: Alert, runbook: str) -> str:
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
        f"          runbook_url: {_quoted(f'{runbook}#{alert.name.lower()}')}\n"
    )


def _quoted(text: str) -> str:
    """A string of YAML: those of JSON are strings of YAML too."""
    return json.dumps(text, ensure_ascii=False)

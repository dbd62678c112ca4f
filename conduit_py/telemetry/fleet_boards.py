"""The dashboards of a server: its fleet, every pipeline at once, its process, and its dead letters."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import (
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    Board,
    Panel,
    Query,
    bars,
    lines,
    now,
    number,
    quantiles,
    rate,
    share_of_time,
    statuses,
)

FLEET = Board(
    "fleet",
    "fleet",
    "Every pipeline of the server: status, throughput, latency, and which are held up by what.",
    {
        "Now": (
            number("Running", f'sum({metrics.PIPELINES.name}{{status="running"}})', "none", "Pipelines that run."),
            number(
                "Degraded",
                f'sum({metrics.PIPELINES.name}{{status="degraded"}})',
                "none",
                "Degraded pipelines: they failed, do not start again by themselves, and wait for somebody.",
                bad=1,
            ),
            number(
                "Recovering",
                f'sum({metrics.PIPELINES.name}{{status="recovering"}})',
                "none",
                "Pipelines that failed and will be started again.",
                bad=1,
            ),
            number(
                "File problems",
                f"sum({metrics.FILE_PROBLEMS.name})",
                "none",
                "Problems in the pipeline files: what is defined there is not in effect.",
                bad=1,
            ),
            number("Records per second", f"sum(rate({metrics.ACKED.name}[$__rate_interval]))", "cps", "Acked, by all."),
            number("In flight", f"sum({metrics.IN_FLIGHT.name})", "short", "Read and not yet settled, by all."),
            number(
                "Oldest progress",
                f"max({metrics.PROGRESS_AGE.name})",
                "s",
                "The longest that a pipeline has had records to settle and settled none.",
                bad=300,
            ),
        ),
        "Pipelines": (
            statuses(),
            Panel(
                "Pipelines by status",
                (Query(f"sum by (status) ({metrics.PIPELINES.name})", "{{status}}"),),
                "none",
                "How many pipelines have each status.",
                stacked=True,
            ),
            lines(
                "Recoveries",
                "none",
                "Starts after an error, in the last 15 minutes.",
                (f"sum by (pipeline_name) (increase({metrics.RECOVERIES.name}{{{OF_PIPELINE}}}[15m]))", BY_PIPELINE),
            ),
            lines(
                "Definition changes",
                "none",
                "Changes of pipeline files that took effect, in the last 15 minutes.",
                (f"sum by (pipeline_name) (increase({metrics.CHANGES.name}{{{OF_PIPELINE}}}[15m]))", BY_PIPELINE),
            ),
        ),
        "Traffic": (
            lines(
                "Acked",
                "cps",
                "Records per second whose source was notified that they are settled.",
                (rate(metrics.ACKED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            quantiles(
                "Latency",
                "From when a record was read until it was settled.",
                metrics.PIPELINE_DURATION,
                OF_PIPELINE,
                "pipeline_name",
                BY_PIPELINE,
            ),
            bars(
                "Window in use",
                f"{now(metrics.IN_FLIGHT, OF_PIPELINE, by='pipeline_name')}"
                f" / {now(metrics.WINDOW, OF_PIPELINE, by='pipeline_name')}",
                BY_PIPELINE,
                "percentunit",
                "The share of what may be in flight that is. Full: something downstream cannot keep up.",
            ),
            bars(
                "Progress age",
                now(metrics.PROGRESS_AGE, OF_PIPELINE, by="pipeline_name", how="max"),
                BY_PIPELINE,
                "s",
                "For how long there have been records to settle and none has been.",
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)


_OF_OURS = f"and on (instance, job) {metrics.INFO.name}"
"""Every Python process that is scraped has these metrics; only ours are shown."""


def _process(metric: str) -> str:
    return f"{metric} {_OF_OURS}"


RUNTIME = Board(
    "runtime",
    "runtime",
    "The process of the server: CPU, memory, open files, tasks, threads, garbage collection.",
    {
        "Process": (
            lines(
                "CPU",
                "percentunit",
                "1 is one core; an event loop cannot use more, worker threads may.",
                (_process("rate(process_cpu_seconds_total[$__rate_interval])"), "{{instance}}"),
            ),
            lines(
                "Memory",
                "bytes",
                "Resident and virtual. What is in flight is bounded by the windows, so it should be flat.",
                (_process("process_resident_memory_bytes"), "{{instance}} resident"),
                (_process("process_virtual_memory_bytes"), "{{instance}} virtual"),
            ),
            lines(
                "Open files",
                "short",
                "File descriptors in use and allowed.",
                (_process("process_open_fds"), "{{instance}} open"),
                (_process("process_max_fds"), "{{instance}} limit"),
            ),
            lines(
                "Uptime",
                "s",
                "Since the process started.",
                (f"(time() - process_start_time_seconds) {_OF_OURS}", "{{instance}}"),
            ),
        ),
        "Each process": (
            lines(
                "CPU of each process",
                "percentunit",
                "Of those that `serve --processes` shares the pipelines out to; 0 is the server's own.",
                (
                    f"rate({metrics.EACH_PROCESS_CPU.name}[$__rate_interval])",
                    "{{instance}} {{process}}",
                ),
            ),
            lines(
                "Memory of each process",
                "bytes",
                "Resident.",
                (f"{metrics.EACH_PROCESS_MEMORY.name}", "{{instance}} {{process}}"),
            ),
            lines(
                "Open files of each process",
                "short",
                "File descriptors in use.",
                (f"{metrics.EACH_PROCESS_FILES.name}", "{{instance}} {{process}}"),
            ),
            lines(
                "Pipelines of each process",
                "short",
                "How many run there now.",
                (f"{metrics.EACH_PROCESS_PIPELINES.name}", "{{instance}} {{process}}"),
            ),
        ),
        "Python": (
            lines(
                "Tasks and threads",
                "short",
                "Tasks in the event loop grow with the pipelines; threads with the connectors that block.",
                (f"{metrics.TASKS.name}", "{{instance}} tasks"),
                (f"{metrics.THREADS.name}", "{{instance}} threads"),
            ),
            lines(
                "Garbage collections",
                "cps",
                "Per second and generation.",
                (_process("rate(python_gc_collections_total[$__rate_interval])"), "{{instance}} {{generation}}"),
            ),
            lines(
                "Objects collected",
                "cps",
                "Per second and generation; cycles of references that would not go away by themselves.",
                (_process("rate(python_gc_objects_collected_total[$__rate_interval])"), "{{instance}} {{generation}}"),
            ),
        ),
        "Versions": (
            lines(
                "conduit-py",
                "none",
                "Servers by version.",
                (f"count by (version) ({metrics.INFO.name})", "{{version}}"),
            ),
            lines(
                "Python",
                "none",
                "Servers by version of Python.",
                (f"count by (version, implementation) ({_process('python_info')})", "{{implementation}} {{version}}"),
            ),
        ),
    },
    (),
)

_READ = rate(metrics.READ, OF_PIPELINE, by="pipeline_name")
_NACKED = rate(metrics.NACKED, OF_PIPELINE, by="pipeline_name")

DEAD_LETTERS = Board(
    "dead-letters",
    "dead letters",
    "Refused records and dead letters: where, how many, and what share of the traffic.",
    {
        "Now": (
            number(
                "Dead letters kept",
                f"sum({metrics.LETTERS.name}{{{OF_PIPELINE}}})",
                "short",
                "In the journal, kept or queued to be sent again.",
                bad=1,
            ),
            number(
                "Dead letters, last hour",
                f"sum(increase({metrics.DEAD_LETTERED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Taken by the handlers of the chosen pipelines.",
                bad=1,
            ),
            number(
                "Refused, last hour",
                f"sum(increase({metrics.NACKED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Records that some node refused.",
                bad=1,
            ),
            number(
                "Pipelines degraded",
                f'sum({metrics.PIPELINE_STATUS.name}{{{OF_PIPELINE}, status="degraded"}})',
                "none",
                "A refusal that the dead-letter policy does not allow degrades its pipeline.",
                bad=1,
            ),
        ),
        "Over time": (
            lines(
                "Dead letters",
                "cps",
                "Per second, taken by the handler.",
                (rate(metrics.DEAD_LETTERED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "In the journal",
                "short",
                "Kept until somebody acts, or queued to be sent again.",
                (
                    f"sum by (pipeline_name, state) ({metrics.LETTERS.name}{{{OF_PIPELINE}}})",
                    f"{BY_PIPELINE} {{{{state}}}}",
                ),
            ),
            lines(
                "Size of the journal",
                "bytes",
                "What the letters take on disk.",
                (f"sum by (pipeline_name) ({metrics.LETTERS_BYTES.name}{{{OF_PIPELINE}}})", BY_PIPELINE),
            ),
            lines(
                "Delivered by replay",
                "cps",
                "Letters per second that were sent again and taken.",
                (rate(metrics.REPLAYED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "Refused by node",
                "cps",
                "Records per second. A destination that refuses what another accepts shows here.",
                (rate(metrics.NACKED, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Share refused",
                "percentunit",
                "Of the records read.",
                (f"{_NACKED} / {_READ}", BY_PIPELINE),
            ),
            quantiles(
                "Calls of the handler",
                "For the letters of one commit.",
                metrics.DLQ_DURATION,
                OF_PIPELINE,
                "pipeline_name, plugin",
                f"{BY_PIPELINE} {{{{plugin}}}}",
            ),
            bars(
                "Where records are refused, last hour",
                f"topk(20, sum by (pipeline_name, node) (increase({metrics.NACKED.name}{{{OF_PIPELINE}}}[1h])))",
                BY_NODE,
                "short",
                "The 20 nodes that refused most.",
            ),
            lines(
                "Waiting for the handler",
                "percentunit",
                "The share of time that commits waited for the dead-letter handler.",
                (
                    share_of_time(metrics.WAITING, f'{OF_PIPELINE}, reason="dead letters"', by="pipeline_name"),
                    BY_PIPELINE,
                ),
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)

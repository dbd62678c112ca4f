"""The dashboard of the process: CPU, memory, files, tasks, garbage collection."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import (
    CHOOSE_INSTANCE,
    OF_INSTANCE,
    Board,
    lines,
)

_OF_OURS = f"and on (instance, job) {metrics.INFO.name}{{{OF_INSTANCE}}}"
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
        "Python": (
            lines(
                "Tasks and threads",
                "short",
                "Tasks in the event loop grow with the pipelines; threads with the connectors that block.",
                (f"{metrics.TASKS.name}{{{OF_INSTANCE}}}", "{{instance}} tasks"),
                (f"{metrics.THREADS.name}{{{OF_INSTANCE}}}", "{{instance}} threads"),
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
                (f"count by (version) ({metrics.INFO.name}{{{OF_INSTANCE}}})", "{{version}}"),
            ),
            lines(
                "Python",
                "none",
                "Servers by version of Python.",
                (f"count by (version, implementation) ({_process('python_info')})", "{{implementation}} {{version}}"),
            ),
        ),
    },
    (CHOOSE_INSTANCE,),
)

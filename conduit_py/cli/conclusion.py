"""Conclusion: the summary line of every pipeline, and of a failed one its first error and what to do."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.result import Result
from conduit_py.config.secrets import redact


def conclude(console: Console, results: Sequence[Result]) -> None:
    """Summaries on the console; errors on stderr, where they belong even when stdout is a file."""
    for result in results:
        console.print(Text(result.sentence(), "green" if result.exit_code is ExitCode.OK else "bold"))
        remark = result.remark()
        if remark:
            console.print(Text(f"  {remark}", "yellow"))
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    for result in results:
        for line in failure_lines(result):
            errors.print(line)


def failure_lines(result: Result) -> list[Text]:
    """The first error, the node it happened in, and the suggestion."""
    error = result.state.error
    if error is None or result.exit_code is ExitCode.OK:
        return []
    # Most messages name their node already.
    place = f" in {error.node}" if error.node and not error.message.startswith(f"{error.node}:") else ""
    lines = [
        Text.assemble(
            (f"{result.progress.pipeline}: failed{place}: ", "bold red"),
            redact(error.message),
            (f" [{error.code}]", "dim"),
        )
    ]
    if error.suggestion:
        lines.append(Text(f"  {redact(error.suggestion)}", "green"))
    return lines

"""examine: run every check and print what was found, the trouble last, where it is seen."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conduit_py.cli.doctor.check_result import CheckResult
from conduit_py.cli.doctor.machine import check_machine
from conduit_py.cli.doctor.project import check_address, check_pipelines, check_state, check_tokens
from conduit_py.cli.output import ExitCode, put_json

STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}


@dataclass(frozen=True)
class DoctorOptions:
    """What is examined: what `serve` would be given."""

    pipelines: Path | None
    state: Path
    host: str
    port: int
    token_file: Path | None


def run_checks(subject: DoctorOptions, *, as_json: bool) -> ExitCode:
    """Print every finding. Exit code 3 if the machine must be mended, 2 if only pipelines must, else 0."""
    findings = list(_all_checks(subject))
    if as_json:
        sound = all(finding.verdict != "fail" for finding in findings)
        put_json({"ok": sound, "checks": [asdict(finding) for finding in findings]})
    else:
        _print_results(findings)
    failed = {finding.check for finding in findings if finding.verdict == "fail"}
    if not failed:
        return ExitCode.OK
    return ExitCode.INVALID if failed == {"pipelines"} else ExitCode.ENVIRONMENT


def _all_checks(subject: DoctorOptions) -> Iterator[CheckResult]:
    yield from check_machine()
    yield from check_state(subject.state)
    yield check_address(subject.host, subject.port)
    yield check_tokens(subject.token_file)
    yield from check_pipelines(subject.pipelines)


def _print_results(findings: list[CheckResult]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    width = max(len(finding.check) for finding in findings)
    for verdict in ("ok", "warn", "fail"):
        for finding in findings:
            if finding.verdict == verdict:
                line = Text.assemble((f"{verdict:4}", STYLES[verdict]), f"  {finding.check:{width}}  {finding.message}")
                console.print(line)
                if finding.fix:
                    console.print(Text(f"      {'':{width}}  {finding.fix}", "green"))
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in STYLES}
    console.print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} to mend")

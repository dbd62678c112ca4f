"""The command `dashboards`: Grafana dashboards and Prometheus alerts that fit this version."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from conduit_py.cli.fault import print_error_as_json
from conduit_py.cli.output import ExitCode, put, put_json

dashboards = App(name="dashboards", help="Get dashboards for Grafana and alerts for Prometheus.", sort_key=14)


@dashboards.command
def export(
    *,
    out: Annotated[Path, Parameter(help="folder to write them to", show_default=True)] = Path("dashboards"),
    json: Annotated[bool, Parameter(help="answer in JSON on stdout")] = False,
    debug: Annotated[bool, Parameter(help="show tracebacks and debug logs")] = False,
) -> int:
    """Write five dashboards and a file of alerts. Files of the same names are replaced."""
    from conduit_py.errors import EnvironmentUnfit
    from conduit_py.telemetry.export import export

    with print_error_as_json(as_json=json):
        try:
            paths = export(out)
        except OSError as error:
            raise EnvironmentUnfit(f"the dashboards cannot be written to {out}: {error.strerror}") from error
    if json:
        put_json({"files": [str(path) for path in paths]})
        return ExitCode.OK
    for path in paths:
        put(str(path))
    put("Import the JSON files in Grafana; name alerts.yml under rule_files in prometheus.yml.")
    return ExitCode.OK

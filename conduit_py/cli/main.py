"""The command `conduit-py`: its commands and options, and the place where errors become exit codes.

Everything heavy is imported inside the command that needs it: `--help` must answer at once.
"""

import gc
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, validators

from conduit_py import __version__, defaults
from conduit_py.cli import server_commands
from conduit_py.cli.output import forget_reader, prepare_streams, shown_traceback
from conduit_py.cli.storage_commands import dlq, journal, state
from conduit_py.exhaustion import MEMORY, end_if_without_memory, end_without_memory, exhaustion_of, what_ran_out


def _show_wrong_usage(error: CycloptsError) -> Any:
    from cyclopts import CycloptsPanel, UnusedCliTokensError

    if not isinstance(error, UnusedCliTokensError):
        return CycloptsPanel(error)
    # The library only says that there are tokens it did not use.
    command = " ".join(["conduit-py", *(error.command_chain or ())])
    tokens = ", ".join(map(repr, error.unused_tokens or ()))
    return CycloptsPanel(f"{command} does not take {tokens}: see what it takes with {command} --help")


app = App(
    name="conduit-py",
    help="""Move records between systems: ordered acks, bounded memory, nothing lost.

Start with `conduit-py quickstart`. A pipeline is written down in a Python
or YAML file, and `conduit-py run FILE` runs it.

Exit codes: 0 ok, 1 failed, 2 invalid, 3 environment, 4 dead letters.""",
    help_format="plaintext",
    version=f"conduit-py {__version__}",
    suppress_keyboard_interrupt=False,
    error_formatter=_show_wrong_usage,
    default_parameter=Parameter(negative="", show_default=False),
)

File = Annotated[Path, Parameter(help="Python file with pipelines at its top level, or Conduit's YAML")]
PipelineId = Annotated[str | None, Parameter(help="only the pipeline with this id")]
Engine = Annotated[Literal["trio", "spark"] | None, Parameter(help="what runs it [default: as in the file, else trio]")]
Master = Annotated[str | None, Parameter(help="the Spark, as local[2] or spark://host:7077 [default: local[*]]")]
Json = Annotated[bool, Parameter(help="answer in JSON on stdout")]
Debug = Annotated[bool, Parameter(help="show tracebacks and debug logs")]
Observe = Annotated[tuple[Literal["otel", "openlineage"], ...], Parameter(help="send traces and metrics, or lineage")]


@app.command(sort_key=1)
def run(
    file: File,
    /,
    *,
    pipeline: PipelineId = None,
    state: Annotated[
        str | None,
        Parameter(
            help="folder for positions and state, or a PostgreSQL database as postgresql://user@host/name "
            f"[default: {defaults.PROJECT_STATE} in the working directory]"
        ),
    ] = None,
    fresh: Annotated[bool, Parameter(help="forget the stored positions and deliver everything again")] = False,
    fail_on_dead_letters: Annotated[bool, Parameter(help="end with exit code 4 if any record was refused")] = False,
    once: Annotated[bool, Parameter(help="run pipelines with a schedule once, now, and end")] = False,
    stop_timeout: Annotated[
        float | None, Parameter(help="seconds a graceful stop may take", validator=validators.Number(gt=0))
    ] = None,
    engine: Engine = None,
    master: Master = None,
    observe: Observe = (),
    json: Annotated[bool, Parameter(help="progress and results as JSON lines")] = False,
    debug: Debug = False,
) -> int:
    """Run the pipelines of a file until their sources end, or on their schedule until they are stopped.

    A second run continues where the first one ended, however it ended.
    Ctrl-C (or SIGTERM) stops gracefully: what has been read is delivered first.
    A second Ctrl-C stops at once: what was in flight is read again next time.
    """
    from conduit_py.cli.run import run_file

    return run_file(
        file, pipeline=pipeline, state=state, fresh=fresh, fail_on_dead_letters=fail_on_dead_letters,
        once=once, stop_timeout=stop_timeout, engine=engine, master=master, observe=observe, as_json=json, debug=debug,
    )  # fmt: skip


@app.command(sort_key=2)
def serve(
    *,
    pipelines: Annotated[Path, Parameter(help="folder of pipeline files, or one file")],
    state: Annotated[
        str | None,
        Parameter(
            help="folder for positions and state and statuses, or a PostgreSQL database, which several servers "
            f"may share, as postgresql://user@host/name [default: {defaults.PROJECT_STATE} in the working directory]"
        ),
    ] = None,
    watch: Annotated[bool, Parameter(help="follow changes of the files while it runs")] = False,
    processes: Annotated[int, Parameter(help="processes that share pipelines", validator=validators.Number(gte=0))] = 0,
    host: Annotated[str, Parameter(help="address to listen on", show_default=True)] = defaults.HOST,
    port: Annotated[
        int, Parameter(help="port to listen on; 0 is any", show_default=True, validator=validators.Number(gte=0))
    ] = defaults.PORT,
    token_file: Annotated[Path | None, Parameter(help="file with a role and a token a line, mode 0600")] = None,
    allow_host: Annotated[tuple[str, ...], Parameter(help="another host name that clients may use")] = (),
    stop_timeout: Annotated[
        float, Parameter(help="seconds that a stop may take", show_default=True, validator=validators.Number(gt=0))
    ] = defaults.STOP_SECONDS,
    tls_cert: Annotated[Path | None, Parameter(help="certificate to serve HTTPS with")] = None,
    tls_key: Annotated[Path | None, Parameter(help="key of the certificate")] = None,
    tls_client_ca: Annotated[Path | None, Parameter(help="accept only clients whose certificate it signed")] = None,
    log_format: Annotated[Literal["text", "json"] | None, Parameter(help="[default: json; text on a terminal]")] = None,
    observe: Observe = (),
    debug: Debug = False,
) -> int:
    """Run many pipelines, with an HTTP API to see and operate them.

    What ran when the server last ended, however it ended, runs again. What a user stopped stays stopped.
    SIGTERM (or Ctrl-C) delivers what has been read, then ends; a second one ends at once.
    """
    from conduit_py.cli.serve import ListenOptions, ServeOptions
    from conduit_py.cli.serve import serve as serve_pipelines

    return serve_pipelines(
        ServeOptions(pipelines, state, stop_timeout, log_format, debug, watch, processes, observe),
        ListenOptions(host, port, token_file, allow_host, tls_cert, tls_key, tls_client_ca),
    )


@app.command(sort_key=3)
def check(
    file: File,
    /,
    *,
    pipeline: PipelineId = None,
    connect: Annotated[bool, Parameter(help="also reach every system, and change nothing there")] = False,
    timeout: Annotated[
        float, Parameter(help="seconds for each system", show_default=True, validator=validators.Number(gt=0))
    ] = 10.0,
    engine: Engine = None,
    master: Master = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Check the pipelines of a file without starting them, and report all problems at once."""
    from conduit_py.cli.check import check

    seconds = timeout if connect else None
    return check(file, pipeline=pipeline, as_json=json, connect_seconds=seconds, engine=engine, master=master)


@app.command(sort_key=4)
def graph(
    file: File,
    /,
    *,
    pipeline: PipelineId = None,
    format: Annotated[Literal["text", "mermaid", "svg"], Parameter(help="how to draw", show_default=True)] = "text",
    out: Annotated[Path | None, Parameter(help="file to write to [default: stdout]")] = None,
    debug: Debug = False,
) -> int:
    """Draw the pipelines of a file."""
    from conduit_py.cli.check import draw_file

    return draw_file(file, pipeline=pipeline, format=format, out=out)


@app.command(sort_key=5)
def quickstart(
    *,
    records: Annotated[
        int, Parameter(help="how many records to make", show_default=True, validator=validators.Number(gte=1))
    ] = 20,
    write: Annotated[Path | None, Parameter(help="write the pipeline to this file instead of running it")] = None,
    debug: Debug = False,
) -> int:
    """Run a small pipeline that needs no files, and print what to do next."""
    from conduit_py.cli.templates import quickstart

    return quickstart(records=records, write=write, debug=debug)


@app.command(sort_key=6)
def init(
    folder: Annotated[Path, Parameter(help="folder to write it to [default: this one]")] = Path(),
    /,
    *,
    yaml: Annotated[bool, Parameter(help="write the pipeline in Conduit's YAML instead of Python")] = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Write a small project to start from: a pipeline that runs, and a test that passes."""
    from conduit_py.cli.templates import init

    return init(folder, yaml=yaml, as_json=json)


def _check_plugin_name(_: Any, name: str) -> None:
    if not fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > 40:
        raise ValueError("must be lower-case letters and digits, with single hyphens between, such as my-shop")


@app.command(sort_key=6)
def new(
    kind: Annotated[Literal["connector", "processor", "singer"], Parameter(help="what to write")],
    name: Annotated[str, Parameter(help="my-shop, or the name of a tap", validator=_check_plugin_name)],
    /,
    *,
    folder: Annotated[Path | None, Parameter(help="folder [default: conduit-NAME; pipelines for a tap]")] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Write a package with a connector or processor of your own, whose tests pass, or a pipeline with a Singer tap."""
    from conduit_py.cli.templates import new_plugin

    return new_plugin(kind, name, folder, as_json=json)


@app.command(sort_key=7)
def doctor(
    *,
    pipelines: Annotated[
        Path | None, Parameter(help="folder of pipeline files, or one file [default: pipelines, if there is one]")
    ] = None,
    state: Annotated[
        Path | None, Parameter(help=f"folder for positions and state [default: {defaults.PROJECT_STATE}]")
    ] = None,
    host: Annotated[str, Parameter(help="address that a server would listen on", show_default=True)] = defaults.HOST,
    port: Annotated[
        int, Parameter(help="and its port", show_default=True, validator=validators.Number(gte=0))
    ] = defaults.PORT,
    token_file: Annotated[Path | None, Parameter(help="file with a role and a token a line")] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Check this machine and the arguments that `serve` would get, and print how to fix each problem.

    Nothing is started, and no other machine is contacted. The exit code is 0 unless something must be fixed.
    """
    from conduit_py.cli.doctor import DoctorOptions, run_checks
    from conduit_py.cli.state import choose_state

    if pipelines is None and Path("pipelines").is_dir():
        pipelines = Path("pipelines")
    return run_checks(DoctorOptions(pipelines, state or choose_state(), host, port, token_file), as_json=json)


@app.command(sort_key=8)
def version(*, json: Json = False) -> int:
    """Print the version of conduit-py and of what it runs on."""
    from conduit_py.cli.installed import show_version

    return show_version(as_json=json)


dashboards = App(name="dashboards", help="Get dashboards for Grafana and alerts for Prometheus.", sort_key=14)


@dashboards.command
def export(
    *,
    out: Annotated[Path, Parameter(help="folder to write them to", show_default=True)] = Path("dashboards"),
    runbook: Annotated[str, Parameter(help="address of the runbook, for links in alerts")] = "docs/operate/runbook.md",
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Write five dashboards and a file of alerts. Files of the same names are replaced."""
    from conduit_py.cli.templates import write_dashboards

    return write_dashboards(out, runbook, as_json=json)


for commands in (
    *(server_commands.pipelines, server_commands.positions, server_commands.sources, server_commands.plugins),
    *(dlq, dashboards, journal, state),
):
    app.command(commands)
app.command(server_commands.top, sort_key=12)
app.command(server_commands.tap, sort_key=14)
app.register_install_completion_command(help="Install completion of commands and options for your shell.")
# By their names: most calls of the command need nothing of them. The list of commands needs their help, though.
app.command("conduit_py.cli.spark_commands:spark", name="spark", sort_key=20, help="Prepare or clear a Spark cluster.")
app.command("conduit_py.cli.mcp:mcp", name="mcp", sort_key=21, help="Serve tools to an assistant that speaks MCP.")


def main() -> None:
    """The entry point of the command."""
    # Before anything opens a file: it could get the number of a closed standard stream.
    prepare_streams()
    # Out of memory a thread may end without the answer that a task waits for: then the process would sleep for ever.
    threading.excepthook = end_if_without_memory
    # A start makes many objects and no garbage: at its default the collector would look at them again and again.
    gc.set_threshold(defaults.YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    code = answer(sys.argv[1:])
    if "_duckdb" in sys.modules:
        gc.unfreeze()  # its binding prints as leaks what `run` has frozen, and what a thread about to end still holds
        for thread in (each for each in threading.enumerate() if each.name == "conduit-store"):
            thread.join(5)
    sys.exit(code)


def answer(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors are printed without a traceback, unless --debug is given."""
    try:
        return int(app(arguments, result_action="return_value") or 0)
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would print a traceback of its own.
        forget_reader(sys.stdout)
        return 1
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        # By the arguments, not the parsed option: parsing them may be what failed.
        return _print_error(error, debug="--debug" in arguments)


def _print_error(error: BaseException, *, debug: bool) -> int:
    if debug:
        import traceback

        sys.stderr.write(shown_traceback("".join(traceback.format_exception(error))) + "\n")
    # Nurseries wrap errors in groups. The first one is the cause; the others mostly follow from it.
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 1
    if what_ran_out(error) == MEMORY:
        end_without_memory()
    try:
        from conduit_py.cli.errors import print_error

        # As what it is, and not as a bug: it may have ended the event loop.
        return int(print_error(exhaustion_of(error) or error))
    except MemoryError:
        end_without_memory()


if __name__ == "__main__":
    main()

"""The commands that operate a server: their arguments and help. What they do is imported when they are called."""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import App, Parameter, validators

from conduit_py import defaults

WAIT_SECONDS = 30.0
"""How long the commands wait for a pipeline to start or stop."""


def _check_url(_: Any, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be an address such as {defaults.URL}")
    if "@" in parts.netloc:
        raise ValueError("may hold no password: give a token with --token-file or CONDUIT_API_TOKEN")


def _check_id(_: Any, id: str, length_max: int = defaults.PIPELINE_ID_LENGTH_MAX) -> None:
    if not fullmatch(defaults.ID_PATTERN, id) or len(id) > length_max:
        raise ValueError(f"must be 1 to {length_max} letters, digits or any of _.:-")


def _check_node_id(_: Any, id: str | None) -> None:
    if id is not None:
        _check_id(_, id, length_max=defaults.NODE_ID_LENGTH_MAX)


def _within(least: int, most: int) -> validators.Number:
    return validators.Number(gte=least, lte=most)


@Parameter(name="*")
@dataclass(frozen=True)
class ServerCall:
    """The server to call, the token to use, and how to print the answer."""

    url: Annotated[
        str, Parameter(help="address of the server", env_var="CONDUIT_URL", show_default=True, validator=_check_url)
    ] = defaults.URL
    token_file: Annotated[
        Path | None, Parameter(help="file with the token, mode 0600 [default: the one in CONDUIT_API_TOKEN]")
    ] = None
    tls_ca: Annotated[
        Path | None,
        Parameter(help="certificate to trust [default: those of this machine]", env_var="CONDUIT_TLS_CA"),
    ] = None
    tls_cert: Annotated[
        Path | None, Parameter(help="client certificate, for a server that requires one", env_var="CONDUIT_TLS_CERT")
    ] = None
    tls_key: Annotated[
        Path | None, Parameter(help="its key [default: in the same file]", env_var="CONDUIT_TLS_KEY")
    ] = None
    json: Annotated[bool, Parameter(help="answer in JSON on stdout")] = False
    debug: Annotated[bool, Parameter(help="show tracebacks and debug logs")] = False


@Parameter(name="*")
@dataclass(frozen=True)
class StateCall(ServerCall):
    """A server to call, or a state that no server uses."""

    state: Annotated[
        str | None,
        Parameter(help="state directory, or PostgreSQL database, to work on without a server, as `run` left it"),
    ] = None
    pipelines: Annotated[
        Path | None,
        Parameter(help="with --state: the file or folder of the pipelines [default: where they were last run from]"),
    ] = None


HERE = ServerCall()
STATE_HERE = StateCall()

PipelineId = Annotated[str, Parameter(help="id of the pipeline", validator=_check_id)]
SourceId = Annotated[str, Parameter(help="id of one of its sources", validator=_check_node_id)]
KeepState = Annotated[
    bool, Parameter(help="keep the state of processors; records that are read again count twice in it")
]
NodeId = Annotated[str, Parameter(help="id of one of its nodes", validator=_check_node_id)]
Json = Annotated[bool, Parameter(help="answer in JSON on stdout")]
Wait = Annotated[
    float,
    Parameter(help="seconds to wait for it; 0 does not wait", show_default=True, validator=validators.Number(gte=0)),
]

pipelines = App(name="pipelines", help="See, start and stop the pipelines of a server.", sort_key=10)
positions = App(name="positions", help="See and change the positions of sources.", sort_key=11)
sources = App(name="sources", help="Make the sources of running pipelines read a table again.", sort_key=11)
plugins = App(name="plugins", help="See which connectors and processors are installed.", sort_key=13)


@pipelines.command(name="list", sort_key=1)
def list_pipelines(*, call: ServerCall = HERE) -> int:
    """List every pipeline with its status."""
    from conduit_py.cli.pipelines import show_all

    return show_all(call)


@pipelines.command(sort_key=2)
def describe(id: PipelineId, /, *, call: ServerCall = HERE) -> int:
    """Show one pipeline with its nodes, their counters, and its last error."""
    from conduit_py.cli.pipelines import show

    return show(call, id)


@pipelines.command(sort_key=3)
def start(id: PipelineId, /, *, wait: Wait = WAIT_SECONDS, call: ServerCall = HERE) -> int:
    """Start a pipeline; it continues from its positions."""
    from conduit_py.cli.pipelines import start

    return start(call, id, wait)


@pipelines.command(sort_key=4)
def stop(
    id: PipelineId,
    /,
    *,
    force: Annotated[bool, Parameter(help="at once: what is in flight is read again")] = False,
    wait: Wait = WAIT_SECONDS,
    call: ServerCall = HERE,
) -> int:
    """Stop a pipeline: what has been read is delivered first. It stays stopped until it is started."""
    from conduit_py.cli.pipelines import stop

    return stop(call, id, wait, force=force)


@pipelines.command(sort_key=5)
def restart(id: PipelineId, /, *, wait: Wait = WAIT_SECONDS, call: ServerCall = HERE) -> int:
    """Stop a pipeline if it is running, and start it."""
    from conduit_py.cli.pipelines import restart

    return restart(call, id, wait)


@pipelines.command(sort_key=6)
def reload(*, call: ServerCall = HERE) -> int:
    """Make the server read its pipeline files again and apply what has changed."""
    from conduit_py.cli.pipelines import reload

    return reload(call)


@positions.command(name="show", sort_key=1)
def show_positions(id: PipelineId, /, *, call: StateCall = STATE_HERE) -> int:
    """Show the position of each source of a pipeline."""
    from conduit_py.cli.pipelines import show_positions

    return show_positions(call, id)


def _check_position(*, position: str, text: bool = False, **_: Any) -> None:
    try:
        b64decode(position if not text else "", validate=True)
    except (NotBase64, ValueError) as error:
        raise ValueError("POSITION is not in base64; give --text if it is the position as it is") from error


@positions.command(name="set", sort_key=2, validator=_check_position)
def set_position(
    id: PipelineId,
    source: SourceId,
    position: Annotated[str, Parameter(help="in base64, as `positions show` prints it", allow_leading_hyphen=True)],
    /,
    *,
    text: Annotated[bool, Parameter(help="the position is given as it is, not in base64")] = False,
    keep_state: KeepState = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Make a source continue after a position. The pipeline must be stopped."""
    from conduit_py.cli.pipelines import change_position

    encoded = b64encode(position.encode()).decode() if text else position
    return change_position(call, id, source, encoded, keep_state=keep_state)


def _check_reset(source: str | None = None, *, all: bool = False, keep_state: bool = False, **_: Any) -> None:
    if (source is None) != all:
        raise ValueError("give SOURCE or --all, which also forgets the state of processors")
    if all and keep_state:
        raise ValueError("--all forgets the state; with --keep-state reset the sources one by one")


@positions.command(name="reset", sort_key=3, validator=_check_reset)
def reset_position(
    id: PipelineId,
    source: SourceId | None = None,
    /,
    *,
    all: Annotated[bool, Parameter(help="all sources, and forget the state of processors")] = False,
    keep_state: KeepState = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Make one source, or all, start from the beginning. The pipeline must be stopped."""
    from conduit_py.cli.pipelines import change_position, start_over

    return start_over(call, id) if source is None else change_position(call, id, source, None, keep_state=keep_state)


@positions.command(name="history", sort_key=4)
def position_history(id: PipelineId, source: SourceId, /, *, call: StateCall = STATE_HERE) -> int:
    """Show the points of the past to which a source can be set back."""
    from conduit_py.cli.pipelines import show_history

    return show_history(call, id, source)


TIME_FORMS = "a time such as 2026-11-16T09:30 (UTC unless it has a zone), or how long ago, such as 90m, 2h or 7d"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(text: str) -> datetime:
    """A time of day, or how long ago."""
    ago = fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    time = datetime.fromisoformat(text)
    # UTC, not the zone of this machine: the same command must mean the same time wherever it is run.
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _check_since(_: Any, since: str) -> None:
    if since != "start":
        try:
            parse_time(since)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"must be `start` or {TIME_FORMS}") from error


@positions.command(sort_key=5)
def replay(
    id: PipelineId,
    source: SourceId,
    /,
    *,
    since: Annotated[
        str,
        Parameter(name="--from", help="a time in UTC, how long ago, as 2h, or `start` for all", validator=_check_since),
    ],
    keep_state: KeepState = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Make a source read again what was settled since a time. The pipeline must be stopped."""
    from conduit_py.cli.pipelines import replay

    return replay(call, id, source, since, keep_state=keep_state)


@sources.command(name="snapshot", sort_key=1)
def request_snapshot(
    id: PipelineId,
    source: SourceId,
    collection: Annotated[str, Parameter(help="what to read, such as a table as `schema.table`")],
    /,
    *,
    where: Annotated[
        str | None,
        Parameter(help="only what fits this condition, in the language of the source: SQL. Needs the role admin"),
    ] = None,
    call: ServerCall = HERE,
) -> int:
    """Make a source read a table as a whole while the pipeline runs. Changes are read meanwhile."""
    from conduit_py.cli.pipelines import request_snapshot

    return request_snapshot(call, id, source, collection, where)


def top(
    *,
    count: Annotated[
        int | None, Parameter(help="leave after so many looks, two a second", validator=validators.Number(gte=1))
    ] = None,
    call: ServerCall = HERE,
) -> int:
    """Watch the pipelines of a server, those with problems first, until Ctrl-C."""
    from conduit_py.cli.top import top

    return top(call, count)


def tap(
    id: PipelineId,
    node: NodeId,
    /,
    *,
    rate: Annotated[
        int,
        Parameter(
            help="at most so many records a second", show_default=True, validator=_within(1, defaults.TAP_RATE_MAX)
        ),
    ] = defaults.TAP_RATE,
    limit: Annotated[
        int | None, Parameter(help="leave after so many records", validator=_within(1, defaults.TAP_LIMIT_MAX))
    ] = None,
    when: Annotated[
        str | None, Parameter(help="only records for which this is true, such as 'payload.amount > 10'")
    ] = None,
    call: ServerCall = HERE,
) -> int:
    """Watch the records of a node as they pass, with what it changes, until Ctrl-C. The pipeline is not slowed down.

    Needs a token with the role operate, because it shows the contents of records.
    """
    from conduit_py.cli.tap import tap

    return tap(call, id, node, rate, limit, when)


@plugins.command(name="list", sort_key=1)
def list_plugins(*, json: Json = False) -> int:
    """List every connector and processor that is installed here."""
    from conduit_py.cli.installed import show_all

    return show_all(as_json=json)


@plugins.command(name="describe", sort_key=2)
def describe_plugin(
    kind: Annotated[Literal["source", "destination", "processor"], Parameter(help="what it is")],
    name: Annotated[str, Parameter(help="its name")],
    /,
    *,
    json: Json = False,
) -> int:
    """Show what a plugin does and the options that it takes."""
    from conduit_py.cli.installed import show

    return show(kind, name, as_json=json)


@plugins.command(sort_key=3)
def schema() -> int:
    """Print the JSON schema of pipeline files in YAML, with the plugins of this machine, for your editor."""
    from conduit_py.cli.installed import show_schema

    return show_schema()

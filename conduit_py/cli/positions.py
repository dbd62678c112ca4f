"""The commands `positions`: from where the sources of a pipeline go on."""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

from conduit_py.cli.client import calling
from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.operate import Call
from conduit_py.cli.output import put, put_json
from conduit_py.cli.table import put_table


def show(call: Call, id: str) -> ExitCode:
    """Print the position of every source."""
    with calling(call) as client:
        answer = client.ask("GET", "pipelines", id, "positions")
    if call.json:
        put_json(answer)
    else:
        put_table(("SOURCE", "POSITION", "AS TEXT"), [_row(*each) for each in answer["positions"].items()])
    return ExitCode.OK


def change(call: Call, id: str, source: str, position: str | None) -> ExitCode:
    """Set a source's position, or forget it. What it was is printed, for it is the way back."""
    path = ("pipelines", id, "positions", source)
    with calling(call) as client:
        before = client.ask("GET", "pipelines", id, "positions")["positions"].get(source)
        body = None if position is None else {"position": position}
        answer = client.ask("DELETE" if position is None else "PUT", *path, body=body)
    if call.json:
        put_json({**answer, "before": {source: before}})
    else:
        where = "starts from the beginning" if position is None else f"goes on after {position}"
        was = "none" if before is None else before
        put(f"{id}: {source} {where}; its position was {was}")
    return ExitCode.OK


def show_history(call: Call, id: str, source: str) -> ExitCode:
    """Print the points of the past to which a source can be set back."""
    with calling(call) as client:
        answer = client.ask("GET", "pipelines", id, "positions", source, "history")
    if call.json:
        put_json(answer)
    else:
        put_table(("TIME (UTC)", "POSITION", "AS TEXT", ""), [_point_row(point) for point in answer["points"]])
    return ExitCode.OK


def replay(call: Call, id: str, source: str, since: str) -> ExitCode:
    """Set a source back to where it was at a time, or to the beginning. What its position was is printed."""
    with calling(call) as client:
        before = client.ask("GET", "pipelines", id, "positions")["positions"].get(source)
        body = {"from": since if since == "start" else _zoned(since)}
        answer = client.ask("POST", "pipelines", id, "positions", source, "replay", body=body)
    if call.json:
        put_json({**answer, "before": {source: before}})
    else:
        point, was = answer["point"], "none" if before is None else before
        where = "starts from the beginning" if point is None else f"goes back to where it was at {_time(point['at'])}"
        put(f"{id}: {source} {where}; its position was {was}")
    return ExitCode.OK


def _zoned(since: str) -> str:
    time = datetime.fromisoformat(since)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _point_row(point: dict[str, Any]) -> tuple[str, ...]:
    _, position, text = _row("", point["position"])
    return _time(point["at"]), position, text, "a run began" if point["start"] else ""


def _row(source: str, position: str | None) -> tuple[str, ...]:
    if position is None:
        return source, "", "the beginning"
    return source, position, _text(b64decode(position))


def _text(position: bytes) -> Any:
    """The position itself where a person can read it, which most can."""
    try:
        return position.decode()
    except UnicodeDecodeError:
        return ""

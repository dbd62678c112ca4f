"""What the commands `positions` and `sources` do: where sources go on, and what they read once more."""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

from conduit_py.cli.client import connect
from conduit_py.cli.output import ExitCode, put, put_json, put_table
from conduit_py.cli.server_commands import ServerCall, parse_time


def show(call: ServerCall, id: str) -> ExitCode:
    """Print the position of every source."""
    with connect(call) as client:
        answer = client.request("GET", "pipelines", id, "positions")
    if call.json:
        put_json(answer)
    else:
        put_table(("SOURCE", "POSITION", "AS TEXT"), [_row(*each) for each in answer["positions"].items()])
    return ExitCode.OK


def change(call: ServerCall, id: str, source: str, position: str | None, *, keep_state: bool = False) -> ExitCode:
    """Set the position of a source, or delete it. The old position is printed."""
    path = ("pipelines", id, "positions", source)
    with connect(call) as client:
        # Read before it is replaced: printed, it is the only way back.
        before = client.request("GET", "pipelines", id, "positions")["positions"].get(source)
        if position is None:
            answer = client.request("DELETE", *path, query={"keep_state": True} if keep_state else None)
        else:
            answer = client.request("PUT", *path, body={"position": position, "keep_state": keep_state})
    if call.json:
        put_json({**answer, "before": {source: before}})
    else:
        where = "starts from the beginning" if position is None else f"goes on after {position}"
        was = "none" if before is None else before
        put(f"{id}: {source} {where}; its position was {was}")
    return ExitCode.OK


def start_over(call: ServerCall, id: str) -> ExitCode:
    """Forget all positions of a pipeline, and the state of its processors. The old positions are printed."""
    with connect(call) as client:
        # Read before they are forgotten: printed, they are the only way back.
        before = client.request("GET", "pipelines", id, "positions")["positions"]
        client.request("POST", "pipelines", id, "reset")
    if call.json:
        put_json({"positions": dict.fromkeys(before), "before": before})
    else:
        was = ", ".join(f"{source} {'none' if each is None else each}" for source, each in before.items())
        put(f"{id}: starts from the beginning, with no state; its positions were {was}")
    return ExitCode.OK


def show_history(call: ServerCall, id: str, source: str) -> ExitCode:
    """Print the points of the past to which a source can be set back."""
    with connect(call) as client:
        answer = client.request("GET", "pipelines", id, "positions", source, "history")
    if call.json:
        put_json(answer)
    else:
        put_table(("TIME (UTC)", "POSITION", "AS TEXT", ""), [_point_row(point) for point in answer["points"]])
    return ExitCode.OK


def replay(call: ServerCall, id: str, source: str, since: str, *, keep_state: bool = False) -> ExitCode:
    """Set a source back to its position at a time, or to the beginning. The old position is printed."""
    with connect(call) as client:
        before = client.request("GET", "pipelines", id, "positions")["positions"].get(source)
        body = {"from": since if since == "start" else parse_time(since).isoformat(), "keep_state": keep_state}
        answer = client.request("POST", "pipelines", id, "positions", source, "replay", body=body)
    if call.json:
        put_json({**answer, "before": {source: before}})
    else:
        point, was = answer["point"], "none" if before is None else before
        where = "starts from the beginning" if point is None else f"goes back to where it was at {_time(point['at'])}"
        put(f"{id}: {source} {where}; its position was {was}")
    return ExitCode.OK


def request_snapshot(call: ServerCall, id: str, source: str, collection: str, where: str | None) -> ExitCode:
    """Have a source read a collection as a whole. Says whether the request survives a crash already."""
    body = {"collection": collection} if where is None else {"collection": collection, "where": where}
    with connect(call) as client:
        answer = client.request("POST", "pipelines", id, "sources", source, "snapshot", body=body)
    if call.json:
        put_json(answer)
    elif answer["durable"]:
        put(f"{id}: {source} reads {collection} as a whole, beside what it reads")
    else:
        put(
            f"{id}: {source} has taken the request to read {collection}, but it is not stored yet: records that were"
            f" read before it are not delivered. If the run ends before that, repeat the request"
        )
    return ExitCode.OK


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
    """The position as text, if it is UTF-8; most are."""
    try:
        return position.decode()
    except UnicodeDecodeError:
        return ""

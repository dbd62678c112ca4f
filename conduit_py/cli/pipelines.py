"""What the commands `pipelines` do: list, show, start, stop, restart and reload the pipelines of a server.

And `positions` and `sources`: where their sources go on, and what they read once more.
"""

import sys
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from conduit_py.cli.client import ApiClient, connect
from conduit_py.cli.errors import count_of
from conduit_py.cli.output import ExitCode, ago, printable, put, put_json, put_table
from conduit_py.cli.server_commands import ServerCall, parse_time
from conduit_py.errors import ConduitError, Problem

POLL_SECONDS = 0.1
ENDED = ("stopped", "completed", "degraded")
STEPS = {
    "add": "is new, and started",
    "remove": "is gone; what it has read is delivered, then it is removed",
    "swap": "goes on with other processors",
    "restart": "delivers what it has read, then restarts",
    "note": "has another definition, for the next start",
}
STARTED = ("running", "recovering", "waiting", "completed", "degraded")


class WaitTimedOut(ConduitError):
    """The server accepted the command, but did not finish it in time."""

    code = "wait.timed_out"


def show_all(call: ServerCall) -> ExitCode:
    """Print a line for each pipeline."""
    with connect(call) as client:
        answer = client.request("GET", "pipelines")
    if call.json:
        put_json(answer)
    elif answer["pipelines"]:
        headings = ("PIPELINE", "STATUS", "FOR", "READ", "ACKED", "DEAD", "IN FLIGHT", "")
        rows = [_row(each) for each in answer["pipelines"]]
        put_table(headings, rows, right=("FOR", "READ", "ACKED", "DEAD", "IN FLIGHT"))
    else:
        put("the server has no pipelines")
    if not call.json:
        _put_problems(answer.get("problems", []))
    return ExitCode.OK


def _put_problems(problems: list[dict[str, Any]]) -> None:
    if problems:
        put(f"{count_of(problems)} in the pipeline files; what is defined there is not in effect:", sys.stderr)
    for problem in problems:
        put(f"  {_problem_text(problem)}", sys.stderr)


def show(call: ServerCall, id: str) -> ExitCode:
    """Print everything about a pipeline."""
    with connect(call) as client:
        shown = client.request("GET", "pipelines", id)
    if call.json:
        put_json(shown)
        return ExitCode.OK
    put(_sentence(shown))
    for line in _facts(shown):
        put(f"  {line}")
    put("")
    headings = ("NODE", "KIND", "PLUGIN", "AFTER", "RECORDS", "FILTERED", "REFUSED", "RETRIES", "IN FLIGHT", "")
    rows = [_node_row(node) for node in shown["nodes"]]
    put_table(headings, rows, right=("RECORDS", "FILTERED", "REFUSED", "RETRIES", "IN FLIGHT"))
    return ExitCode.OK


def start(call: ServerCall, id: str, wait: float) -> ExitCode:
    """Start a pipeline and wait until it runs."""
    with connect(call) as client:
        shown = client.request("POST", "pipelines", id, "start")
        if wait:
            shown = _wait(client, id, wait, lambda now: now["status"] in STARTED, "started")
    return _report(call, shown)


def stop(call: ServerCall, id: str, wait: float, *, force: bool) -> ExitCode:
    """Stop a pipeline and wait until it has."""
    with connect(call) as client:
        shown = client.request("POST", "pipelines", id, "stop", body={"force": force})
        if wait:
            advice = None if force else f"`conduit-py pipelines stop {id} --force` does not wait for what is in flight"
            shown = _wait(client, id, wait, lambda now: now["status"] in ENDED, "stopped", advice)
    return _report(call, shown)


def restart(call: ServerCall, id: str, wait: float) -> ExitCode:
    """Restart a pipeline and wait until it runs again."""
    with connect(call) as client:
        # Without it, the status of the old run would count as that of the new one.
        before = client.request("GET", "pipelines", id)["since"]
        shown = client.request("POST", "pipelines", id, "restart")
        if wait:
            advice = "it is started as soon as what is in flight is delivered"
            shown = _wait(
                client, id, wait, lambda now: now["status"] in STARTED and now["since"] != before, "restarted", advice
            )
    return _report(call, shown)


def reload(call: ServerCall) -> ExitCode:
    """Make the server read its files again, and print the changes and the problems."""
    with connect(call) as client:
        answer = client.request("POST", "reload")
    if call.json:
        put_json(answer)
    else:
        for id, step in answer["steps"].items():
            put(f"{id}: {STEPS[step]}")
        for problem in answer["problems"]:
            put(_problem_text(problem), sys.stderr)
        if not answer["steps"]:
            put("nothing has changed")
    return ExitCode.FAILED if answer["problems"] else ExitCode.OK


def _wait(
    client: ApiClient,
    id: str,
    seconds: float,
    done: Callable[[dict[str, Any]], bool],
    what: str,
    advice: str | None = None,
) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    shown: dict[str, Any]
    # Polled: the API accepts a command at once and does it in the background.
    while not done(shown := client.request("GET", "pipelines", id)):
        if time.monotonic() >= deadline:
            blocked = (shown["progress"] or {}).get("blocked_on")
            reason = f", waits for {blocked}" if blocked else ""
            raise WaitTimedOut(
                f"{id} has not {what} within {seconds:g} s: it is {shown['status']}{reason}", suggestion=advice
            )
        time.sleep(POLL_SECONDS)
    return shown


def _report(call: ServerCall, shown: dict[str, Any]) -> ExitCode:
    """Print the status of the pipeline. The command fails if the pipeline is degraded."""
    if call.json:
        put_json(shown)
    else:
        put(f"{shown['id']}: {shown['status']}")
    error = shown.get("error")
    if error and shown["status"] != "running":
        put(f"  {_error_text(error)}", sys.stderr)
    return ExitCode.FAILED if shown["status"] == "degraded" else ExitCode.OK


def _row(shown: dict[str, Any]) -> tuple[str, ...]:
    progress = shown["progress"] or {}
    counts = [f"{progress.get(name, 0):,}" for name in ("read", "acked", "dead_letters", "in_flight")]
    return shown["id"], shown["status"], ago(time.time() - shown["since"]), *counts, trouble(shown)


def trouble(shown: dict[str, Any]) -> str:
    """What the pipeline waits for, the error that it recovers from or ended with, or a bad edit; in one line."""
    blocked = (shown["progress"] or {}).get("blocked_on")
    error = shown["error"]
    if error and shown["status"] in ("recovering", "degraded", "stopped"):
        return printable(f"{error['message']} [{error['code']}]")
    if shown.get("definition"):
        return printable(f"its newest definition is not in effect: {shown['definition']['message']}")
    where = engine_of(shown)
    return printable(", ".join([*([where] if where else []), *([f"waits for {blocked}"] if blocked else [])]))


def engine_of(shown: dict[str, Any]) -> str:
    """What a pipeline runs on, if that is not the server's own process."""
    if shown.get("engine", "trio") == "trio":
        return f"in process {shown['process']}" if shown.get("process") else ""
    master = shown.get("spark_master")
    return f"on Spark ({master})" if master else "on Spark"


def _sentence(shown: dict[str, Any]) -> str:
    by = f" by the {shown['stopped_by']}" if shown["stopped_by"] else ""
    since = datetime.fromtimestamp(shown["since"], UTC).isoformat(sep=" ", timespec="seconds")
    return f"{shown['id']}: {shown['status']}{by} since {since}"


def _facts(shown: dict[str, Any]) -> list[str]:
    letters, progress, error = shown["dead_letters"], shown["progress"], shown["error"]
    facts = [shown["description"]] if shown["description"] else []
    where = f", {engine_of(shown)}" if engine_of(shown) else ""
    facts.append(f"delivery {shown['delivery']}, dead letters to {letters['handler']}{where}")
    facts += [
        f"{each['source']} → {each['destination']}: {each['promise']}, {each['order']}: {each['why']}"
        for each in shown["guarantees"]
    ]
    if progress:
        facts.append(
            f"{progress['read']:,} read, {progress['acked']:,} acked, {progress['filtered']:,} filtered, "
            f"{progress['dead_letters']:,} dead, {progress['in_flight']:,} in flight "
            f"in {progress['elapsed_seconds']:,.1f} s"
        )
        if progress["blocked_on"]:
            facts.append(f"waits for {progress['blocked_on']}")
    if shown.get("definition"):
        facts.append(f"its newest definition is not in effect: {_problem_text(shown['definition'])}")
    return [*facts, _error_text(error)] if error else facts


def _problem_text(problem: dict[str, Any]) -> str:
    fields = {name: problem[name] for name in ("path", "message", "suggestion", "file", "line")}
    return printable(str(Problem(**fields)))


def _error_text(error: dict[str, Any]) -> str:
    advice = f" ({error['suggestion']})" if error["suggestion"] else ""
    return printable(f"last error: {error['message']} [{error['code']}]{advice}")


def _node_row(node: dict[str, Any]) -> tuple[str, ...]:
    counts = [f"{node[name]:,}" for name in ("records", "filtered", "refused", "retries", "in_flight")]
    waits = f"waits for {node['waiting_on']}" if node["waiting_on"] else ""
    return node["id"], node["kind"], node["label"], ", ".join(node["inputs"]), *counts, waits


def show_positions(call: ServerCall, id: str) -> ExitCode:
    """Print the position of every source."""
    with connect(call) as client:
        answer = client.request("GET", "pipelines", id, "positions")
    if call.json:
        put_json(answer)
    else:
        put_table(("SOURCE", "POSITION", "AS TEXT"), [_position_row(*each) for each in answer["positions"].items()])
    return ExitCode.OK


def change_position(
    call: ServerCall, id: str, source: str, position: str | None, *, keep_state: bool = False
) -> ExitCode:
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
    _, position, text = _position_row("", point["position"])
    return _time(point["at"]), position, text, "a run began" if point["start"] else ""


def _position_row(source: str, position: str | None) -> tuple[str, ...]:
    if position is None:
        return source, "", "the beginning"
    return source, position, _text(b64decode(position))


def _text(position: bytes) -> Any:
    """The position as text, if it is UTF-8; most are."""
    try:
        return position.decode()
    except UnicodeDecodeError:
        return ""

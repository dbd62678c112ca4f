"""Api: every request of the HTTP API, with the type of its answer, for `Client` and `AsyncClient`."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from conduit_py import defaults
from conduit_py.client import ApiCall, Stream
from conduit_py.server.access import AccessView
from conduit_py.server.dead_letter_views import CausesView, DiscardView, LetterReplayView, LettersView, LetterView
from conduit_py.server.live import FleetEvent, PipelineEvent
from conduit_py.server.monitoring import ChartHistoryView
from conduit_py.server.pipelines import ReloadView
from conduit_py.server.taps import DroppedEvent, RecordEvent
from conduit_py.server.views import (
    AcceptedView,
    HistoryView,
    PipelineDetailsView,
    PipelinesView,
    PluginDetailsView,
    PluginView,
    PositionReplayView,
    PositionsView,
    SnapshotView,
)

__all__ = ["Api", "DroppedEvent", "FleetEvent", "LetterSelection", "PipelineEvent", "RecordEvent"]


class LetterSelection(TypedDict, total=False):
    """Selects dead letters: those that match every field that is given. Times are in seconds since 1970."""

    pipeline: str
    node: str
    cause: str
    text: str
    source: str
    state: Literal["kept", "queued"]
    since: float
    until: float
    when: str


class Api:
    """Every request of the API, to be sent by `Client.ask` or `AsyncClient.ask`. To make one sends nothing."""

    @staticmethod
    def access() -> ApiCall[AccessView]:
        """What the token of this client allows."""
        return ApiCall(AccessView, "GET", ("access",))

    @staticmethod
    def pipelines() -> ApiCall[PipelinesView]:
        """Every pipeline at a glance, and every problem in the pipeline files."""
        return ApiCall(PipelinesView, "GET", ("pipelines",))

    @staticmethod
    def pipeline(id: str) -> ApiCall[PipelineDetailsView]:
        """A pipeline with its graph and the counters of its nodes."""
        return ApiCall(PipelineDetailsView, "GET", ("pipelines", id))

    @staticmethod
    def start(id: str) -> ApiCall[AcceptedView]:
        """Start a pipeline. Returns at once; its status says when it is done."""
        return ApiCall(AcceptedView, "POST", ("pipelines", id, "start"))

    @staticmethod
    def stop(id: str, *, force: bool = False) -> ApiCall[AcceptedView]:
        """Stop a pipeline gracefully, or at once, in which case what is in flight is read again."""
        return ApiCall(AcceptedView, "POST", ("pipelines", id, "stop"), {"force": force})

    @staticmethod
    def restart(id: str) -> ApiCall[AcceptedView]:
        """Stop a pipeline gracefully if it is running, then start it."""
        return ApiCall(AcceptedView, "POST", ("pipelines", id, "restart"))

    @staticmethod
    def reset(id: str) -> ApiCall[AcceptedView]:
        """Have a stopped pipeline start from the beginning, with the state of its processors forgotten."""
        return ApiCall(AcceptedView, "POST", ("pipelines", id, "reset"))

    @staticmethod
    def reload() -> ApiCall[ReloadView]:
        """Have the server read its files again, with what they refer to."""
        return ApiCall(ReloadView, "POST", ("reload",))

    @staticmethod
    def charts(id: str) -> ApiCall[ChartHistoryView]:
        """The counters of a pipeline over the last quarter of an hour."""
        return ApiCall(ChartHistoryView, "GET", ("pipelines", id, "history"))

    @staticmethod
    def positions(id: str) -> ApiCall[PositionsView]:
        """The durable position of every source, in base64."""
        return ApiCall(PositionsView, "GET", ("pipelines", id, "positions"))

    @staticmethod
    def set_position(id: str, source: str, position: bytes, *, keep_state: bool = False) -> ApiCall[PositionsView]:
        """Have a source of a stopped pipeline go on after another position."""
        body = {"position": b64encode(position).decode(), "keep_state": keep_state}
        return ApiCall(PositionsView, "PUT", ("pipelines", id, "positions", source), body)

    @staticmethod
    def reset_position(id: str, source: str, *, keep_state: bool = False) -> ApiCall[PositionsView]:
        """Have a source of a stopped pipeline start from the beginning."""
        query = {"keep_state": True} if keep_state else None
        return ApiCall(PositionsView, "DELETE", ("pipelines", id, "positions", source), query=query)

    @staticmethod
    def position_history(id: str, source: str) -> ApiCall[HistoryView]:
        """The points of the past to which a source can be set back, the oldest first."""
        return ApiCall(HistoryView, "GET", ("pipelines", id, "positions", source, "history"))

    @staticmethod
    def replay(
        id: str, source: str, since: datetime | None, *, keep_state: bool = False
    ) -> ApiCall[PositionReplayView]:
        """Have a source of a stopped pipeline read again what was settled since a time; with None everything."""
        body = {"from": "start" if since is None else since.isoformat(), "keep_state": keep_state}
        return ApiCall(PositionReplayView, "POST", ("pipelines", id, "positions", source, "replay"), body)

    @staticmethod
    def snapshot(id: str, source: str, collection: str, *, where: str | None = None) -> ApiCall[SnapshotView]:
        """Have a source of a running pipeline read a collection as a whole, beside what it reads."""
        body = {"collection": collection} if where is None else {"collection": collection, "where": where}
        return ApiCall(SnapshotView, "POST", ("pipelines", id, "sources", source, "snapshot"), body)

    @staticmethod
    def dead_letters(
        which: LetterSelection | None = None, *, cursor: int | None = None, limit: int = defaults.LETTERS_LISTED
    ) -> ApiCall[LettersView]:
        """A page of dead letters without their records, the newest first. `cursor` is `next` of the page before."""
        page = {"limit": limit} if cursor is None else {"limit": limit, "cursor": cursor}
        return ApiCall(LettersView, "GET", ("dead-letters",), query={**(which or {}), **page})

    @staticmethod
    def causes(which: LetterSelection | None = None) -> ApiCall[CausesView]:
        """How many dead letters there are by node and cause, the most frequent first."""
        return ApiCall(CausesView, "GET", ("dead-letters", "causes"), query=which)

    @staticmethod
    def dead_letter(id: str) -> ApiCall[LetterView]:
        """A dead letter with its records and the history of its errors."""
        return ApiCall(LetterView, "GET", ("dead-letters", id))

    @staticmethod
    def edit_dead_letter(id: str, record: Mapping[str, Any], *, node: str | None = None) -> ApiCall[LetterView]:
        """Put another record, in its JSON form, in the place of a dead letter's. Fields left out stay as they are."""
        body = {"record": record} if node is None else {"record": record, "node": node}
        return ApiCall(LetterView, "PUT", ("dead-letters", id, "record"), body)

    @staticmethod
    def replay_dead_letters(
        which: LetterSelection | Sequence[str], *, destinations: Sequence[str] | None = None, dry_run: bool = False
    ) -> ApiCall[LetterReplayView]:
        """Send dead letters again, by their ids or all that match; an empty filter matches every one."""
        only = {} if destinations is None else {"destinations": list(destinations)}
        return ApiCall(
            LetterReplayView, "POST", ("dead-letters", "replay"), {**_which(which), **only, "dry_run": dry_run}
        )

    @staticmethod
    def discard_dead_letters(which: LetterSelection | Sequence[str], *, dry_run: bool = False) -> ApiCall[DiscardView]:
        """Forget dead letters for good, by their ids or all that match; an empty filter matches every one."""
        return ApiCall(DiscardView, "POST", ("dead-letters", "discard"), {**_which(which), "dry_run": dry_run})

    @staticmethod
    def plugins() -> ApiCall[list[PluginView]]:
        """Every connector and processor that is installed there."""
        return ApiCall(list[PluginView], "GET", ("plugins",))

    @staticmethod
    def plugin(kind: Literal["source", "destination", "processor"], name: str) -> ApiCall[PluginDetailsView]:
        """A plugin with the JSON schema of its options."""
        return ApiCall(PluginDetailsView, "GET", ("plugins", kind, name))

    @staticmethod
    def watch(pipeline: str | None = None) -> Stream[FleetEvent | PipelineEvent]:
        """Every pipeline at a glance, twice a second; with `pipeline` also its nodes. For `follow`."""
        query = None if pipeline is None else {"pipeline": pipeline}
        return Stream({"fleet": FleetEvent, "pipeline": PipelineEvent}, ("live",), query)

    @staticmethod
    def tap(
        id: str, node: str, *, rate: int = defaults.TAP_RATE, limit: int | None = None, when: str | None = None
    ) -> Stream[RecordEvent | DroppedEvent]:
        """Records before and after a node, at most `rate` a second, until there were `limit`. For `follow`."""
        given = {"rate": rate, "limit": limit, "when": when}
        query = {name: value for name, value in given.items() if value is not None}
        path = ("pipelines", id, "nodes", node, "tap")
        return Stream({"record": RecordEvent, "dropped": DroppedEvent}, path, query)


def _which(which: LetterSelection | Sequence[str]) -> dict[str, Any]:
    return {"filter": which} if isinstance(which, Mapping) else {"ids": list(which)}

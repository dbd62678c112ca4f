"""Dead letters over HTTP: list, count and show them, edit them, send them again, discard them."""

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from conduit_py.pipeline import Id, NodeId
from conduit_py.record import Record, Structured
from conduit_py.server.letter_views import (
    CausesView,
    DiscardView,
    LettersView,
    LetterView,
    ReplayView,
    cause_view,
    letter_view,
    replay_view,
    shown,
    summary_view,
)
from conduit_py.server.problems import documented
from conduit_py.server.service import Here
from conduit_py.server.views import View
from conduit_py.store.letter import LetterState
from conduit_py.store.letter_filter import LetterFilter
from conduit_py.stream.revision import revised

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

IDS_MAX = 10_000


def _storable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of text")
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_storable)]
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
LetterId = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{16}$", strict=True)]
LetterIdInPath = Annotated[LetterId, Path(description="the id of a dead letter")]
Cursor = Annotated[int, Query(ge=1, le=2**62, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000, description="the most letters in the answer")]


class FilterRequest(View):
    """Which letters are meant: those that fit everything that is said."""

    model_config = ConfigDict(extra="forbid")

    pipeline: Id | None = None
    node: NodeId | None = Field(default=None, description="a node that refuses it")
    cause: Text | None = Field(default=None, description="as /causes names it")
    text: Text | None = Field(default=None, description="a part of the error, in upper or lower case")
    source: NodeId | None = None
    state: LetterState | None = None
    since: Time | None = Field(default=None, description="last refused then or later, in seconds since 1970")
    until: Time | None = Field(default=None, description="last refused before then")

    def to_filter(self, ids: tuple[str, ...] | None = None) -> LetterFilter:
        return LetterFilter(ids=ids, **self.model_dump())


class PageRequest(FilterRequest):
    """Which letters, and how many of them at once."""

    cursor: Cursor | None = None
    limit: Limit = 100


class SelectionRequest(View):
    """Letters by their ids, or all that fit a filter; an empty filter means every letter there is."""

    model_config = ConfigDict(extra="forbid")

    ids: list[LetterId] | None = Field(default=None, max_length=IDS_MAX)
    filter: FilterRequest | None = None
    dry_run: bool = Field(default=False, strict=True, description="say what would happen, and change nothing")

    @model_validator(mode="after")
    def _says_which(self) -> "SelectionRequest":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give ids or filter, one of them")
        return self

    def to_filter(self) -> LetterFilter:
        return self.filter.to_filter() if self.filter is not None else LetterFilter(ids=tuple(self.ids or ()))


class ReplayRequest(SelectionRequest):
    """Which letters to send again."""

    destinations: list[NodeId] | None = Field(
        default=None, min_length=1, max_length=1000, description="only to these, of those that refused it"
    )


class RecordRequest(View):
    """The record in its JSON form. What is left out, or is as it was shown, stays as it is."""

    model_config = ConfigDict(extra="forbid")

    record: dict[str, Any]
    node: NodeId | None = Field(default=None, description="at which node; needed only where the records differ")


@router.get("", responses=documented(503))
async def list_letters(service: Here, which: Annotated[PageRequest, Query()]) -> LettersView:
    """Letters without their records, the newest first."""
    filter = FilterRequest(**which.model_dump(exclude={"cursor", "limit"})).to_filter()
    page = await service.fleet.letters.box.page(filter, which.cursor, which.limit)
    letters = [summary_view(each, service.redaction) for each in page.letters]
    return LettersView(letters=letters, next=page.next, total=page.total)


@router.get("/causes", responses=documented(503))
async def list_causes(service: Here, which: Annotated[FilterRequest, Query()]) -> CausesView:
    """How many letters there are by node and cause, the most frequent first."""
    causes = await service.fleet.letters.box.causes(which.to_filter())
    return CausesView(causes=[cause_view(each, service.redaction) for each in causes])


@router.post("/replay", status_code=202, responses=documented(503))
async def replay_letters(service: Here, request: ReplayRequest) -> ReplayView:
    """Send letters again, each to the nodes that refused it. To ask twice is to ask once."""
    report = await service.fleet.letters.replay(
        request.to_filter(), destinations=request.destinations, dry_run=request.dry_run
    )
    if not request.dry_run:
        log.info("%d dead letters are sent again, over HTTP", report.queued)
    return replay_view(report, dry_run=request.dry_run)


@router.post("/discard", responses=documented(503))
async def discard_letters(service: Here, request: SelectionRequest) -> DiscardView:
    """Forget letters for good. One that is on its way may be delivered all the same."""
    discarded = await service.fleet.letters.discard(request.to_filter(), dry_run=request.dry_run)
    if not request.dry_run:
        log.info("%d dead letters were discarded, over HTTP", discarded)
    return DiscardView(discarded=discarded)


@router.get("/{id}", responses=documented(404, 503))
async def show_letter(service: Here, id: LetterIdInPath) -> LetterView:
    """A letter with its record as it stood where it was refused, and all that is known of why."""
    return letter_view(await service.fleet.letters.box.letter(id), service.redaction)


@router.put("/{id}/record", responses=documented(404, 409, 503))
async def edit_letter(service: Here, id: LetterIdInPath, request: RecordRequest) -> LetterView:
    """Put another record in its place; the original is kept. It is sent only by a replay."""

    def revise(original: Record) -> Record:
        before: Structured = shown(original, service.redaction)
        return revised(original, before, request.record)

    letter = await service.fleet.letters.edit(id, revise, request.node)
    log.info("dead letter %s was edited, over HTTP", id)
    return letter_view(letter, service.redaction)

"""Dead letters over HTTP: list, count and show them, edit them, send them again, discard them."""

import logging
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

import trio
from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import ConfigDict, Field, StringConstraints
from starlette.convertors import StringConvertor, register_url_convertor

from conduit_py.defaults import LETTER_ID_PATTERN, LETTERS_LISTED, LETTERS_PAGE_MAX
from conduit_py.errors import LetterUnclear
from conduit_py.inspect.record_view import apply_edit, fits_condition
from conduit_py.pipeline_settings import ConditionText, Id, NodeId
from conduit_py.record import Operation, Record
from conduit_py.sdk.template import TemplateInvalid, condition_of
from conduit_py.server.access import AllowedRole, AskedBy, Role
from conduit_py.server.dead_letter_views import (
    CausesView,
    DiscardView,
    LetterReplayView,
    LettersView,
    LetterView,
    cause_view,
    letter_view,
    replay_view,
    shown_record,
    summary_view,
)
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel
from conduit_py.store.stored_letter import LetterFilter, LetterState, StoredLetter

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

IDS_MAX = 5000
ViewT = TypeVar("ViewT")


class _LetterConvertor(StringConvertor):
    """Keeps /causes, /replay and /discard from being taken for the id of a letter."""

    regex = LETTER_ID_PATTERN


# Before the routes below are declared: each resolves its convertor by name when it is made.
register_url_convertor("letter", _LetterConvertor())

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
# Strict: in a JSON body the text "5" is a mistake, in a query string everything is text.
ExactTime = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, strict=True)]
LetterId = Annotated[str, StringConstraints(pattern=f"^{LETTER_ID_PATTERN}$", strict=True)]
LetterIdInPath = Annotated[LetterId, Path(description="the id of a dead letter")]
Base64 = Annotated[
    str, StringConstraints(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", strict=True)
]
Cursor = Annotated[int, Query(ge=1, le=2**62, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=LETTERS_PAGE_MAX, description="the most letters in the answer")]


class FilterQuery(ApiModel):
    """Selects dead letters: those that match every field that is given."""

    model_config = ConfigDict(extra="forbid")

    pipeline: Id | None = None
    node: NodeId | None = Field(default=None, description="a node that refuses it")
    cause: Text | None = Field(default=None, description="as /causes names it")
    text: Text | None = Field(default=None, description="a part of the error, in upper or lower case")
    source: NodeId | None = None
    state: LetterState | None = None
    since: Time | None = Field(default=None, description="last refused then or later, in seconds since 1970")
    until: Time | None = Field(default=None, description="last refused before then")
    when: ConditionText | None = Field(
        default=None, description="a condition on the record, such as payload.amount > 10; needs the role operate"
    )

    def to_filter(self) -> LetterFilter:
        return LetterFilter(**self.model_dump(exclude={"when"}))


class FilterRequest(FilterQuery):
    """The same in a body, where a number is a number and not the text of one."""

    since: ExactTime | None = Field(default=None, description="last refused then or later, in seconds since 1970")
    until: ExactTime | None = Field(default=None, description="last refused before then")


class PageQuery(FilterQuery):
    """Which letters, and how many of them at once."""

    cursor: Cursor | None = None
    limit: Limit = LETTERS_LISTED


class _Request(ApiModel):
    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(default=False, strict=True, description="say what would happen, and change nothing")


class IdsRequest(_Request):
    """Letters by their ids."""

    ids: list[LetterId] = Field(max_length=IDS_MAX)

    when: ClassVar[str | None] = None

    def to_filter(self) -> LetterFilter:
        return LetterFilter(ids=tuple(self.ids))


class MatchRequest(_Request):
    """All letters that fit a filter; an empty one fits every letter there is."""

    filter: FilterRequest

    @property
    def when(self) -> str | None:
        return self.filter.when

    def to_filter(self) -> LetterFilter:
        return self.filter.to_filter()


class _Destinations(ApiModel):
    destinations: list[NodeId] | None = Field(
        default=None, min_length=1, max_length=100, description="only to these, of those that refused it"
    )


class ReplayIdsRequest(IdsRequest, _Destinations):
    """Letters to send again, by their ids."""


class ReplayMatchRequest(MatchRequest, _Destinations):
    """Letters to send again: all that fit a filter."""


class PayloadForm(ApiModel):
    """The state before and after; structured, or raw bytes in base64."""

    model_config = ConfigDict(extra="forbid")

    before: Base64 | dict[str, Any] | None = None
    after: Base64 | dict[str, Any] | None = None


class RecordForm(ApiModel):
    """A record in its JSON form. What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    position: Base64 = ""
    operation: Operation = Operation.CREATE
    metadata: dict[str, str] = Field(default_factory=dict)
    key: Base64 | dict[str, Any] | None = None
    payload: PayloadForm = PayloadForm()


class RecordRequest(ApiModel):
    """The record as it shall be. What is as it was shown stays exactly as it is."""

    model_config = ConfigDict(extra="forbid")

    record: RecordForm
    node: NodeId | None = Field(default=None, description="at which node; needed only where the records differ")


@router.get("", responses=error_responses(409, 503))
async def list_letters(service: InService, allowed: AllowedRole, which: Annotated[PageQuery, Query()]) -> LettersView:
    """Letters without their records, the newest first."""
    query = FilterQuery(**which.model_dump(exclude={"cursor", "limit"}))
    filter = await _select(service, allowed, query)
    page = await service.fleet.letters.store.page(filter, which.cursor, which.limit)
    letters = await _in_thread(service, lambda: [summary_view(each, service.redaction) for each in page.letters])
    return LettersView(letters=letters, next=page.next, total=page.total)


@router.get("/causes", responses=error_responses(409, 503))
async def list_causes(service: InService, allowed: AllowedRole, which: Annotated[FilterQuery, Query()]) -> CausesView:
    """How many letters there are by node and cause, the most frequent first."""
    causes = await service.fleet.letters.store.causes(await _select(service, allowed, which))
    return await _in_thread(
        service, lambda: CausesView(causes=[cause_view(each, service.redaction) for each in causes])
    )


@router.post("/replay", status_code=202, responses=error_responses(409, 503))
async def replay_letters(
    service: InService, asked_by: AskedBy, allowed: AllowedRole, request: ReplayIdsRequest | ReplayMatchRequest
) -> LetterReplayView:
    """Send letters again, each to the nodes that refused it. A letter that is queued already stays queued once."""
    filter = await _select(service, allowed, request)
    report = await service.fleet.letters.replay(filter, destinations=request.destinations, dry_run=request.dry_run)
    if not request.dry_run:
        log.info("%d dead letters are sent again (asked by %s)", report.queued, asked_by)
    return replay_view(report, dry_run=request.dry_run)


@router.post("/discard", responses=error_responses(409, 503))
async def discard_letters(
    service: InService, asked_by: AskedBy, allowed: AllowedRole, request: IdsRequest | MatchRequest
) -> DiscardView:
    """Forget letters for good. One that is on its way may be delivered all the same."""
    filter = await _select(service, allowed, request)
    discarded = await service.fleet.letters.discard(filter, dry_run=request.dry_run)
    if not request.dry_run:
        log.info("%d dead letters were discarded (asked by %s)", discarded, asked_by)
    return DiscardView(discarded=discarded)


@router.get("/{letter:letter}", responses=error_responses(404, 503))
async def show_letter(service: InService, letter: LetterIdInPath) -> LetterView:
    """A letter with its record as it was when it was refused, and the history of its errors."""
    return await _letter_view(service, await service.fleet.letters.store.letter(letter))


@router.put("/{letter:letter}/record", responses=error_responses(404, 409, 503))
async def edit_letter(
    service: InService, asked_by: AskedBy, letter: LetterIdInPath, request: RecordRequest
) -> LetterView:
    """Put another record in its place; the original is kept. It is sent only by a replay."""
    # Only what was sent: a field that is left out stays as it is, and must not become its default.
    given = request.record.model_dump(exclude_unset=True)

    def revise(original: Record) -> Record:
        return apply_edit(original, shown_record(original, service.redaction), given)

    edited = await service.fleet.letters.edit(letter, revise, request.node)
    log.info("dead letter %s was edited (asked by %s)", letter, asked_by)
    return await _letter_view(service, edited)


async def _select(service: Service, allowed: Role, which: FilterQuery | IdsRequest | MatchRequest) -> LetterFilter:
    """The filter of a request, with the ids of the letters for which its condition is true."""
    if which.when is None:
        return which.to_filter()
    # What a condition is true for tells what is in a record.
    if allowed < Role.OPERATE:
        raise HTTPException(403, "a condition needs a token with the role operate")
    try:
        condition = condition_of(which.when)
    except TemplateInvalid as invalid:
        raise LetterUnclear(f"when: {invalid.describe(which.when)}", suggestion=invalid.suggestion) from None
    return await service.fleet.letters.select(
        which.to_filter(), lambda record: fits_condition(record, condition, service.redaction), service.view_threads
    )


async def _letter_view(service: Service, letter: StoredLetter) -> LetterView:
    origin = await service.fleet.letters.locate(letter)
    return await _in_thread(service, lambda: letter_view(letter, origin, service.redaction))


async def _in_thread(service: Service, view: Callable[[], ViewT]) -> ViewT:
    """Make a view off the event loop: a thousand letters of 8 KB take a while, and the loop runs all pipelines."""
    # Not among the threads that all share: pipelines would wait for those of hundreds of clients, and forty that
    # compute at a time leave the event loop a fraction of its turns.
    return await trio.to_thread.run_sync(view, abandon_on_cancel=True, limiter=service.view_threads)

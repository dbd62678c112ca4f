"""What the API shows of dead letters. Texts and records that may quote a secret are redacted."""

from base64 import b64encode
from typing import Any, Literal

import msgspec
from pydantic import Field

from conduit_py.inspect.record_view import view_record
from conduit_py.lifecycle.dead_letter_service import ReplayReport
from conduit_py.record import Record, Structured
from conduit_py.server.service import Redaction
from conduit_py.server.views import ApiModel
from conduit_py.store.letter_codec import size_of
from conduit_py.store.stored_letter import CauseCount, LetterSummary, StoredLetter
from conduit_py.wire_error import safe_text

RECORD_SIZE_MAX = 64 * 1024
"""Characters that are shown of a record: no more than a request may send back. The stored record is whole."""

State = Literal["kept", "queued"]


class LetterSummaryView(ApiModel):
    """A dead letter without its record."""

    id: str
    pipeline: str
    source: str
    node: str = Field(description="the first node that refuses it")
    nodes: list[str] = Field(description="every node that refuses it")
    error: str
    cause: str = Field(description="the error, less what tells two records apart")
    state: State = Field(description="kept until somebody acts, or queued to be sent again")
    queued_for: list[str] = Field(description="the nodes to which it is sent again")
    attempts: int = Field(description="deliveries that were tried, the first one and every replay")
    edited: bool
    first_at: float = Field(description="when it was first refused, in seconds since 1970")
    last_at: float
    bytes: int


class LettersView(ApiModel):
    """A page of dead letters."""

    letters: list[LetterSummaryView]
    next: int | None = Field(description="the cursor of the next page; null on the last")
    total: int = Field(description="all that match")


class CauseView(ApiModel):
    """Letters that one node refused in one way."""

    pipeline: str
    node: str
    cause: str
    count: int
    first_at: float
    last_at: float


class CausesView(ApiModel):
    """The causes of dead letters."""

    causes: list[CauseView]


class RefusalView(ApiModel):
    """One refusal in the history of a letter."""

    node: str
    error: str
    at: float
    attempt: int
    tries: int = Field(description="how often the node tried, by its own retry policy")
    location: str | None = Field(description="file, line and function of the user's code that raised the error")


class LetterRecordView(ApiModel):
    """The record as it stood at a node that refuses it, in its JSON form, without secrets."""

    node: str
    record: dict[str, Any]
    original: dict[str, Any] | None = Field(description="as it was before it was edited")
    cut: list[str] = Field(description="the paths of what is too long to be shown whole")
    base64: list[str] = Field(description="the paths of what is bytes, and so in base64")


class LetterView(LetterSummaryView):
    """A dead letter with its records and its history."""

    position: str = Field(description="the position that its source gave it, in base64")
    origin: str | None = Field(description="where its source has the record, such as a line of a file, if known")
    piece: list[int] = Field(description="which part of a split record; empty for a whole one")
    record: dict[str, Any] = Field(description="the record at the first node that refuses it")
    records: list[LetterRecordView] = Field(description="the record at each node that refuses it")
    history: list[RefusalView] = Field(description="the oldest first")


class SendingView(ApiModel):
    """A letter that is sent again, and the nodes at which it enters."""

    id: str
    pipeline: str
    nodes: list[str]


class ObstacleView(ApiModel):
    """A letter that cannot be sent again, and why."""

    id: str
    reason: str


class LetterReplayView(ApiModel):
    """What a replay did, or in a dry run would do. Lists are of the first thousand, numbers of all."""

    queued: int
    already_queued: int
    impossible: int
    not_found: list[str]
    letters: list[SendingView] = Field(description="only in a dry run")
    obstacles: list[ObstacleView]
    notes: list[str]


class DiscardView(ApiModel):
    """How many letters were discarded, or in a dry run would be."""

    discarded: int


def summary_view(summary: LetterSummary, redaction: Redaction) -> LetterSummaryView:
    return LetterSummaryView(**_without_secrets(msgspec.structs.asdict(summary), redaction))


def cause_view(cause: CauseCount, redaction: Redaction) -> CauseView:
    return CauseView(**_without_secrets(msgspec.structs.asdict(cause), redaction))


def letter_view(letter: StoredLetter, origin: str | None, redaction: Redaction) -> LetterView:
    """A dead letter with its records as the API shows it, secrets removed."""
    records = [_record_view(node, letter, redaction) for node in letter.records]
    summary = {
        name: getattr(letter, name)
        for name in LetterSummaryView.model_fields
        if name not in ("nodes", "edited", "bytes")
    }
    return LetterView(
        **_without_secrets(summary, redaction),
        nodes=list(letter.records),
        edited=bool(letter.originals),
        bytes=size_of(letter),
        position=b64encode(letter.position).decode(),
        origin=origin and safe_text(redaction(origin)),
        piece=list(letter.piece),
        record=records[0].record,
        records=records,
        history=[RefusalView(**_without_secrets(msgspec.structs.asdict(each), redaction)) for each in letter.history],
    )


def replay_view(report: ReplayReport, *, dry_run: bool) -> LetterReplayView:
    fields = msgspec.to_builtins(report)
    # The list is for a user who still decides; after a real replay the numbers are enough.
    return LetterReplayView(**fields | {"letters": fields["letters"] if dry_run else []})


def shown_record(record: Record, redaction: Redaction) -> Structured:
    """What is shown of a record."""
    return view_record(record, RECORD_SIZE_MAX, redaction).value


def _record_view(node: str, letter: StoredLetter, redaction: Redaction) -> LetterRecordView:
    original = letter.originals.get(node)
    display = view_record(letter.records[node], RECORD_SIZE_MAX, redaction)
    return LetterRecordView(
        node=node,
        record=display.value,
        original=None if original is None else shown_record(original, redaction),
        cut=display.cut,
        base64=display.in_base64,
    )


def _without_secrets(fields: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
    # These quote what a node raised, and a client library may put a password into its message.
    quotes = ("error", "cause", "location")
    return {name: redaction(value) if name in quotes and value else value for name, value in fields.items()}

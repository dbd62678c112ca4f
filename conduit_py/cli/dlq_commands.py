"""The commands `dlq`: their arguments and help. What they do is imported when they are called."""

from dataclasses import dataclass
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from conduit_py import defaults
from conduit_py.cli.server_commands import STATE_HERE, TIME_FORMS, StateCall, parse_time

dlq = App(
    name="dlq",
    help="See, edit, replay and discard dead letters: those of a server, or with --state those of a run.",
    sort_key=12,
)


def _check_moment(_: Any, text: str | None) -> None:
    if text is None:
        return
    try:
        parse_time(text)
    except (ValueError, OverflowError):
        raise ValueError(f"must be {TIME_FORMS}") from None


def _check_letter(_: Any, id: str) -> None:
    if not fullmatch(defaults.LETTER_ID_PATTERN, id):
        raise ValueError("must be the id of a dead letter: 16 letters and digits, as `dlq list` prints it")


def _check_letters(_: Any, ids: tuple[str, ...]) -> None:
    for id in ids:
        _check_letter(_, id)


@Parameter(name="*")
@dataclass(frozen=True)
class LetterSelection:
    """The options that select letters: those that match all of them."""

    pipeline: Annotated[str | None, Parameter(help="only of this pipeline")] = None
    node: Annotated[str | None, Parameter(help="only those that this node refuses")] = None
    cause: Annotated[str | None, Parameter(help="only with this cause, as `dlq list --causes` prints it")] = None
    text: Annotated[str | None, Parameter(help="only with this in the error")] = None
    source: Annotated[str | None, Parameter(help="only of this source")] = None
    letter_state: Annotated[Literal["kept", "queued"] | None, Parameter(help="only in this state")] = None
    since: Annotated[
        str | None,
        Parameter(help="only last refused since: a time in UTC, or how long ago, as 2h", validator=_check_moment),
    ] = None
    until: Annotated[str | None, Parameter(help="only last refused before then", validator=_check_moment)] = None

    def fields(self) -> dict[str, Any]:
        """The given options, in the form of the API."""
        said = {name.removeprefix("letter_"): value for name, value in vars(self).items() if value is not None}
        return said | {name: parse_time(said[name]).timestamp() for name in ("since", "until") if name in said}


ALL = LetterSelection()

LetterId = Annotated[str, Parameter(help="id of the letter", validator=_check_letter)]
LetterIds = Annotated[
    tuple[str, ...], Parameter(help="ids of letters; without any, the options select them", validator=_check_letters)
]
DryRun = Annotated[bool, Parameter(help="print what would happen, and change nothing")]
All = Annotated[bool, Parameter(name="--all", help="every letter")]


def _check_selection(
    *, ids: tuple[str, ...] = (), which: LetterSelection = ALL, all_letters: bool = False, **_: Any
) -> None:
    """Refuse a command that selects nothing explicitly."""
    # A forgotten option must not replay or discard everything; that needs --all.
    said = which != ALL
    if ids and (said or all_letters):
        raise ValueError("give ids, or options that select letters, not both")
    if not (ids or said or all_letters):
        raise ValueError("this would affect every letter: give ids, options that select some, or --all")


@dlq.command(name="list", sort_key=1)
def list_letters(
    *,
    which: LetterSelection = ALL,
    causes: Annotated[bool, Parameter(help="count them by node and cause instead")] = False,
    limit: Annotated[
        int, Parameter(help="the most letters to list", show_default=True, validator=validators.Number(gte=1))
    ] = defaults.LETTERS_LISTED,
    call: StateCall = STATE_HERE,
) -> int:
    """List dead letters, the newest first."""
    from conduit_py.cli import dead_letters

    return (
        dead_letters.show_causes(call, which.fields()) if causes else dead_letters.show_all(call, which.fields(), limit)
    )


@dlq.command(sort_key=2)
def show(id: LetterId, /, *, call: StateCall = STATE_HERE) -> int:
    """Show a letter: the record as it was when it was refused, and the errors."""
    from conduit_py.cli import dead_letters

    return dead_letters.show(call, id)


@dlq.command(sort_key=3)
def edit(
    id: LetterId,
    /,
    *,
    record: Annotated[
        Path | None, Parameter(help="file with the record in JSON, - is stdin [default: opens your editor]")
    ] = None,
    node: Annotated[str | None, Parameter(help="at which node, if the records differ")] = None,
    call: StateCall = STATE_HERE,
) -> int:
    """Change the record of a letter. The original is kept; a replay sends it."""
    from conduit_py.cli import dead_letters

    return dead_letters.edit(call, id, record, node)


@dlq.command(sort_key=4, validator=_check_selection)
def replay(
    ids: LetterIds = (),
    /,
    *,
    which: LetterSelection = ALL,
    all_letters: All = False,
    to: Annotated[
        tuple[str, ...], Parameter(help="only to this destination, of those that refused it", negative="")
    ] = (),
    dry_run: DryRun = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Send letters again, each to the nodes that refused it; at once if its pipeline runs."""
    from conduit_py.cli import dead_letters

    return dead_letters.replay(call, dead_letters.selection(ids, which.fields()), to, dry_run=dry_run)


@dlq.command(sort_key=5, validator=_check_selection)
def discard(
    ids: LetterIds = (),
    /,
    *,
    which: LetterSelection = ALL,
    all_letters: All = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, Parameter(help="discard without confirmation")] = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Delete letters for good: their records are nowhere else."""
    from conduit_py.cli import dead_letters

    return dead_letters.discard(call, dead_letters.selection(ids, which.fields()), dry_run=dry_run, yes=yes)

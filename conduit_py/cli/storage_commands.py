"""The commands `dlq`, `journal` and `state`: their arguments and help. What they do is imported when called."""

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
class LetterOptions:
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
    when: Annotated[
        str | None, Parameter(help="only those for whose record this is true, such as 'payload.amount > 10'")
    ] = None

    def fields(self) -> dict[str, Any]:
        """The given options, in the form of the API."""
        said = {name.removeprefix("letter_"): value for name, value in vars(self).items() if value is not None}
        return said | {name: parse_time(said[name]).timestamp() for name in ("since", "until") if name in said}


ALL = LetterOptions()

LetterId = Annotated[str, Parameter(help="id of the letter", validator=_check_letter)]
LetterIds = Annotated[
    tuple[str, ...], Parameter(help="ids of letters; without any, the options select them", validator=_check_letters)
]
DryRun = Annotated[bool, Parameter(help="print what would happen, and change nothing")]
All = Annotated[bool, Parameter(name="--all", help="every letter")]


def _check_selection(
    *, ids: tuple[str, ...] = (), which: LetterOptions = ALL, all_letters: bool = False, **_: Any
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
    which: LetterOptions = ALL,
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
    which: LetterOptions = ALL,
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
    which: LetterOptions = ALL,
    all_letters: All = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, Parameter(help="discard without confirmation")] = False,
    call: StateCall = STATE_HERE,
) -> int:
    """Delete letters for good: their records are nowhere else."""
    from conduit_py.cli import dead_letters

    return dead_letters.discard(call, dead_letters.selection(ids, which.fields()), dry_run=dry_run, yes=yes)


journal = App(name="journal", help="See, verify and repair journals, in their directories.", sort_key=15)

Directory = Annotated[Path, Parameter(help="directory of the journal")]
Json = Annotated[bool, Parameter(help="answer in JSON on stdout")]
Debug = Annotated[bool, Parameter(help="show tracebacks and debug logs")]


@journal.command(sort_key=1)
def ls(directory: Directory, /, *, json: Json = False, debug: Debug = False) -> int:
    """List the segments of a journal and its registered writers."""
    from conduit_py.cli.journal import show_segments

    return show_segments(directory, as_json=json)


@journal.command(sort_key=2)
def cat(
    directory: Directory,
    /,
    *,
    offset: Annotated[
        int, Parameter(help="where to begin; 0 is the oldest message", validator=validators.Number(gte=0))
    ] = 0,
    count: Annotated[
        int | None, Parameter(help="how many messages to print", validator=validators.Number(gte=1))
    ] = None,
    uncommitted: Annotated[bool, Parameter(help="print everything in the files, acks too")] = False,
    follow: Annotated[bool, Parameter(help="wait for more at the end, until interrupted")] = False,
    json: Annotated[bool, Parameter(help="one JSON object per message")] = False,
    debug: Debug = False,
) -> int:
    """Print the messages of a journal: those that are committed, each once.

    With --offset only transactions that begin there or later are seen. Damage is reported on stderr, and what
    follows it is printed; the exit code is then 1.
    """
    from conduit_py.cli.journal import CatOptions, print_messages

    return print_messages(directory, CatOptions(offset, count, uncommitted, follow, json))


@journal.command(sort_key=3)
def verify(directory: Directory, /, *, json: Json = False, debug: Debug = False) -> int:
    """Read a journal from end to end and report everything that is damaged or missing, and what is lost by it.

    Changes nothing. The exit code is 1 if something is damaged or missing, and 5 if only an earlier repair gave
    messages up.
    """
    from conduit_py.cli.journal import verify_journal

    return verify_journal(directory, as_json=json)


@journal.command(sort_key=4)
def repair(
    directory: Directory,
    /,
    *,
    release: Annotated[
        str | None, Parameter(help="release the writer of this pipeline, after its state was deleted on purpose")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Move damaged parts aside and mark missing ones as lost, so that readers and writers can continue.

    Damaged parts are kept in the folder quarantine of the journal. Readers get an error at each gap.
    """
    from conduit_py.cli.journal import repair_journal

    return repair_journal(directory, release=release, as_json=json)


state = App(name="state", help="Back up, restore, inspect and upgrade a state, also while it is in use.", sort_key=15)

StatePlace = Annotated[
    str | None,
    Parameter(help=f"folder of the state, or a PostgreSQL database [default: {defaults.PROJECT_STATE}]"),
]


@state.command(sort_key=1)
def backup(
    target: Annotated[Path, Parameter(help="directory to write it to, which must not exist")],
    /,
    *,
    state: StatePlace = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Copy a state, as it is at one moment, while pipelines go on."""
    from conduit_py.cli.state import back_up_state

    return back_up_state(target, state, as_json=json)


@state.command(sort_key=2)
def restore(
    backup: Annotated[Path, Parameter(help="directory that `state backup` has written")],
    /,
    *,
    state: StatePlace = None,
    force: Annotated[bool, Parameter(help="replace the state that is there; its files are moved to a folder")] = False,
    allow_repeats: Annotated[
        bool, Parameter(help="restore exactly-once pipelines, which deliver again what came after the backup")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Put a backup into a state directory that no process uses."""
    from conduit_py.cli.state import restore_state

    return restore_state(backup, state, replace=force, allow_repeats=allow_repeats, as_json=json)


@state.command(sort_key=3)
def inspect(*, state: StatePlace = None, json: Json = False, debug: Debug = False) -> int:
    """Show the format of a state, or of a backup, and what it has of each pipeline. Changes nothing."""
    from conduit_py.cli.state import inspect_state

    return inspect_state(state, as_json=json)


@state.command(sort_key=4)
def upgrade(*, state: StatePlace = None, json: Json = False, debug: Debug = False) -> int:
    """Migrate a state to the format of this version. `run` and `serve` do so by themselves."""
    from conduit_py.cli.state import upgrade_state

    return upgrade_state(state, as_json=json)

"""The commands `journal`: their arguments and help. What they do is imported when they are called."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

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

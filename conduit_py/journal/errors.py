"""The errors of a journal."""

from conduit_py.errors import EnvironmentUnfit, FatalError, Fenced, TransientError
from conduit_py.journal.registers import Registers, Selector


class JournalUnfit(FatalError, EnvironmentUnfit):
    """The directory cannot be used as a journal until somebody acts. Nothing was changed."""

    code = "journal.unfit"


def cut_short(journal: str, segment: str, end: int, confirmed: int) -> JournalUnfit:
    """The error for a journal whose last segment ends before what its appends had confirmed."""
    return JournalUnfit(
        f"journal {journal} ends at offset {end}, but appends were confirmed up to offset {confirmed}: "
        f"{segment} was cut short or damaged at its end, and its last messages are lost",
        suggestion=f"put {segment} back from a copy; or accept the loss with `conduit-py journal repair {journal}`, "
        "and readers pass over these offsets with a warning",
    )


def emptied(journal: str, confirmed: int) -> JournalUnfit:
    """The error for a journal whose segments were all removed."""
    return JournalUnfit(
        f"journal {journal} has no segments, but appends were confirmed up to offset {confirmed}: "
        "its files were removed, and its messages are lost",
        suggestion=f"put the files back from a copy; or accept the loss with `conduit-py journal repair {journal}`, "
        f"and no offset is used again; to begin another journal there, remove {journal} as a whole",
    )


class JournalFailed(TransientError):
    """A write or fsync failed. Nothing more can be appended until the journal is opened, and so verified, again."""

    code = "journal.failed"


class JournalFull(TransientError):
    """There was no room for an append. Nothing of it was written, and later appends may succeed."""

    code = "journal.full"


class JournalBusy(TransientError):
    """Another process held the journal for too long."""

    code = "journal.busy"


class JournalDamaged(FatalError):
    """The bytes at `[begin, end)` are not what was written. The next read continues after them."""

    code = "journal.damaged"

    def __init__(self, journal: str, begin: int, end: int, what: str) -> None:
        super().__init__(
            f"journal {journal}: {what} at offsets {begin} to {end}",
            suggestion=f"inspect it with `conduit-py journal verify {journal}`; "
            f"`conduit-py journal repair {journal}` sets it aside, and readers continue after it",
        )
        self.journal, self.begin, self.end = journal, begin, end


class JournalGap(FatalError):
    """There is nothing at `[begin, end)`: it was pruned, or a segment is missing. The next read continues at `end`."""

    code = "journal.gap"

    def __init__(self, journal: str, begin: int, end: int, what: str) -> None:
        super().__init__(
            f"journal {journal}: offsets {begin} to {end} {what}",
            suggestion="to continue with what is there, forget the position of the source that reads it",
        )
        self.journal, self.begin, self.end = journal, begin, end


class FrameTooLarge(FatalError):
    """An append is larger than a frame can be. Nothing of it was written."""

    code = "journal.frame_too_large"


class WrongOffset(FatalError):
    """An append requires another head of the journal than the actual one. Nothing of it was written."""

    code = "journal.wrong_offset"

    def __init__(self, journal: str, at: int, head: int) -> None:
        super().__init__(f"journal {journal}: an append requires the head at offset {at}, but it is at {head}")
        self.at, self.head = at, head


class RegisterMismatch(Fenced):
    """The registers are not as an append requires: a newer writer took over. `registers` has the actual ones."""

    def __init__(self, journal: str, check: Selector, registers: Registers) -> None:
        super().__init__(
            f"journal {journal}: a newer writer took over: an append requires that {check}, and registers are "
            + ", ".join(f"{label} = {'/'.join(values)}" for label, values in registers.items())
        )
        self.registers = registers

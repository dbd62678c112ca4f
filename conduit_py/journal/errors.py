"""What can go wrong with a journal, and what happens next."""

from conduit_py.errors import EnvironmentUnfit, FatalError, Fenced, TransientError
from conduit_py.journal.registers import Registers, Selector


class JournalUnfit(EnvironmentUnfit):
    """The directory cannot be used as a journal as it is; nothing was changed."""

    code = "journal.unfit"


class JournalFailed(TransientError):
    """A write or fsync failed. Nothing more can be appended until the journal is opened, and so verified, again."""

    code = "journal.failed"


class JournalFull(TransientError):
    """There was no room for an append. Nothing of it is there, and a later one is tried."""

    code = "journal.full"


class JournalBusy(TransientError):
    """Another process held the journal for too long."""

    code = "journal.busy"


class JournalDamaged(FatalError):
    """The bytes at `[begin, end)` are not what was written. Reading again goes on behind them."""

    code = "journal.damaged"

    def __init__(self, journal: str, begin: int, end: int, what: str) -> None:
        super().__init__(
            f"journal {journal}: {what} at offsets {begin} to {end}",
            suggestion=f"see what it is with `conduit-py journal verify {journal}`; "
            f"`conduit-py journal repair {journal}` sets it aside, and readers go on behind it",
        )
        self.journal, self.begin, self.end = journal, begin, end


class JournalGap(FatalError):
    """There is nothing at `[begin, end)`: it was pruned, or a segment is missing. Reading again goes on at `end`."""

    code = "journal.gap"

    def __init__(self, journal: str, begin: int, end: int, what: str) -> None:
        super().__init__(
            f"journal {journal}: offsets {begin} to {end} {what}",
            suggestion="to go on with what is there, forget the position of the source that reads it",
        )
        self.journal, self.begin, self.end = journal, begin, end


class FrameTooLarge(FatalError):
    """An append is larger than a frame can be; nothing of it was written."""

    code = "journal.frame_too_large"


class WrongOffset(FatalError):
    """An append was to be made at one offset, and the head of the journal is at another."""

    code = "journal.wrong_offset"

    def __init__(self, journal: str, at: int, head: int) -> None:
        super().__init__(f"journal {journal}: an append was to be made at offset {at}, but the head is at {head}")
        self.at, self.head = at, head


class RegisterMismatch(Fenced):
    """The registers are not as an append requires them: somebody else took over. `registers` has them as they are."""

    def __init__(self, journal: str, check: Selector, registers: Registers) -> None:
        super().__init__(
            f"journal {journal}: a newer writer took over: an append requires that {check}, and registers are "
            + ", ".join(f"{label} = {'/'.join(values)}" for label, values in registers.items())
        )
        self.registers = registers

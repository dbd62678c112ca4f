"""Defer: what a processor raises to have a record in the next transaction, behind a commit of all before it."""

from conduit_py.record import Record


class Defer(Exception):
    """Ends the transaction before this record: everything before it commits, and it is the first of the next one.

    For a processor of an exactly-once pipeline that is declared to do so, `@processor(state=True, defers=True)`.
    The record comes again as it came, and what was done to the state since is undone. The first record of a
    transaction (`state.first`) cannot be deferred: there is nothing to commit before it, so it would be deferred
    for ever. One that takes batches gives `Defer()` in place of the result for the record and all behind it.
    """

    def __init__(self, record: Record | None = None) -> None:
        """The runtime notes the record as it came."""
        super().__init__("deferred to the next transaction")
        self.record = record

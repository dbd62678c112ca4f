"""Numbered records: the test data in which a lost, repeated or reordered record shows at a glance."""

from conduit_py.record import Record


def numbered_record(number: int, source: str = "source") -> Record:
    """The record `number` of `source`, at the position of that number."""
    return Record.of({"n": number, "from": source}, key={"n": number}, position=position_of(number))


def position_of(number: int) -> bytes:
    return b"%d" % number


def number_of(record: Record) -> int | None:
    """The number of a record or of a dead letter about one; None if it has none."""
    after = record.payload.after
    if isinstance(after, dict) and isinstance(after.get("n"), int):
        number: int = after["n"]
        return number
    # What a processor or the dead-letter handler wraps up keeps the position it came from.
    return int(record.position) if record.position.isdigit() else None

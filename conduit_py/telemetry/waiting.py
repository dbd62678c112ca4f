"""What nodes wait for, as a bounded set of words."""

from conduit_py.stream.meter import Meter, NodeKind

REASONS: dict[NodeKind, tuple[str, ...]] = {
    "source": ("source", "window", "channel", "store", "source ack"),
    "processor": ("processor", "back-off", "channel"),
    "destination": ("write", "flush", "back-off", "answers", "commit"),
    "dead_letters": ("dead letters",),
}
"""By kind of node: what each of the `waiting` blocks in `stream/` says."""


def waits_of(meter: Meter) -> dict[str, bool]:
    """Each reason that a node of its kind may have, and whether it has it now."""
    # Without the detail, which is for people: as a label it would have no bound.
    now = {wait.reason.value for wait in meter.waits}
    return dict.fromkeys(REASONS[meter.kind], False) | dict.fromkeys(now, True)

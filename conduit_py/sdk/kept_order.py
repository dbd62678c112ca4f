"""KeptOrder: which records of a source, or at a destination, keep their order."""

from enum import Enum


class KeptOrder(Enum):
    """Records that are in one of these keep their order; between two of them there is none."""

    EVERYTHING = "everything"
    PARTITION = "partition"
    KEY = "key"
    GROUP = "message group"
    OBJECT = "object"
    NOTHING = "nothing"

    def within(self, other: "KeptOrder") -> str:
        """Return in words what is left of this order where only the other one is kept."""
        if KeptOrder.NOTHING in (self, other):
            return "in no order"
        # Each once: a topic that is copied to another keeps the order of what shares a partition in both.
        parts = [each.value for each in dict.fromkeys((self, other)) if each is not KeptOrder.EVERYTHING]
        return f"in order for each {' and '.join(parts)}" if parts else "in order"

"""Durations as Go writes them: 500ms, 1m30s, 1.5h."""

import re
from typing import Final

EXAMPLES: Final = "such as 500ms, 10s or 1m30s"


def seconds_of(text: str) -> float:
    """The duration in seconds; what is none raises ValueError."""
    text = text.strip()
    if text in ("0", "+0", "-0"):
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"must be a duration {EXAMPLES}")
    total = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


_AMOUNT = r"(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})"
_UNIT = "ns|us|µs|μs|ms|s|m|h"
_PART = re.compile(f"({_AMOUNT})({_UNIT})")
_DURATION = re.compile(f"[+-]?(?:{_AMOUNT}(?:{_UNIT}))+")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

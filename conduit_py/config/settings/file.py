"""Settings of Conduit's file connector: its source follows a file, its destination writes whole records."""

from typing import Final

from conduit_py.config.settings.translation import Translation

KNOWN: Final = ["path"]


def source(translation: Translation) -> None:
    """Raw lines, waiting for more at the end, and for the file itself; our own options may say otherwise."""
    translation.known += KNOWN
    for option, value in (("tail", True), ("format", "lines")):
        if option not in translation.rest:
            translation.set(option, value, option)


def destination(translation: Translation) -> None:
    """A record in OpenCDC's JSON form a line, or what the template in `sdk.record.format.options` makes of it."""
    translation.known += KNOWN
    if translation.line is not None:
        translation.set("format", "lines", "sdk.record.format")
    elif "format" not in translation.rest:
        translation.set("format", "opencdc", "format")

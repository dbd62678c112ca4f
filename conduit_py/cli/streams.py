"""Streams: the standard streams, safe to use whatever the caller left of them."""

import os
import sys
from io import TextIOWrapper
from typing import TextIO


def prepare_streams() -> None:
    """Make sure that there are three, and that none fails on a character it cannot show.

    A stream that was closed leaves its number free: the next file to be opened would get it, and with it
    what a connector reads from or writes to the stream. What takes its place here fails like a closed one,
    so that no record is read from or lost in it; our own words go nowhere.
    """
    for descriptor, useless in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, useless)
    # Python has None for a stream that was closed when it started.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

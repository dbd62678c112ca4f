"""Looks whether a path can be written, without writing to it."""

import os
from pathlib import Path

from conduit_py.sdk import FatalError


def probe_writable(path: Path) -> str:
    """Return what is at the path. Raises FatalError if a file or folder cannot be created or written there."""
    # The nearest folder that exists: connectors create those that are missing.
    there = path if path.exists() else next((each for each in path.absolute().parents if each.exists()), Path("/"))
    if there != path and not there.is_dir():
        raise FatalError(f"{path} cannot be created: {there} is no folder", suggestion="check the path")
    if not os.access(there, os.W_OK):
        raise FatalError(f"{there} cannot be written", suggestion="check the path, and the rights of this user")
    return f"{path} can be written" if there == path else f"{path} can be created"

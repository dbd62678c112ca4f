"""Errors shown by Spark as a traceback: what to do about them is added as a note."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from conduit_py.errors import ConduitError, EnvironmentUnfit, FatalError, PipelineInvalid


@contextmanager
def note_suggestions() -> Iterator[None]:
    """Add the suggestion of our errors to their traceback, which is all that Spark shows."""
    try:
        yield
    except ConduitError as error:
        if error.suggestion and not isinstance(error, PipelineInvalid):
            error.add_note(f"What to do: {error.suggestion}.")
        raise


@contextmanager
def on_executor(folder: str) -> Iterator[None]:
    """Change to the driver's working directory, if it exists here; name the machine on which a connector is missing."""
    with suppress(OSError):
        os.chdir(folder)
    with note_suggestions():
        try:
            yield
        except (PipelineInvalid, EnvironmentUnfit, ImportError) as error:
            raise FatalError(
                f"the connector cannot be built on executor {socket.gethostname()}: {error}",
                suggestion="install there what is installed on the driver, for example with spark.archives",
            ) from error

"""Errors shown by Spark as a traceback: what to do about them is added as a note."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from conduit_py.errors import ConduitError, EnvironmentUnfit, FatalError, PipelineInvalid


@contextmanager
def note_suggestions() -> Iterator[None]:
    """Have the traceback of our errors say what to do about them."""
    try:
        yield
    except ConduitError as error:
        if error.suggestion and not isinstance(error, PipelineInvalid):
            error.add_note(f"What to do: {error.suggestion}.")
        raise


@contextmanager
def on_executor(folder: str) -> Iterator[None]:
    """Be in the driver's folder, if there is such a one here, and say on which machine a connector is missing."""
    with suppress(OSError):
        os.chdir(folder)
    with note_suggestions():
        try:
            yield
        except (PipelineInvalid, EnvironmentUnfit, ImportError) as error:
            raise FatalError(
                f"the connector cannot be made on executor {socket.gethostname()}: {error}",
                suggestion="install there what is installed on the driver, for example with spark.archives",
            ) from error

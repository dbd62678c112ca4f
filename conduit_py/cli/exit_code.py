"""ExitCode: how the command ended, for scripts."""

from enum import IntEnum


class ExitCode(IntEnum):
    """0 ok · 1 failed · 2 invalid · 3 environment."""

    OK = 0
    """Completed, or stopped gracefully by the user."""
    FAILED = 1
    """A pipeline ended degraded or was cut short, so not everything was delivered."""
    INVALID = 2
    """The arguments, the file or a pipeline in it are wrong; nothing was started."""
    ENVIRONMENT = 3
    """This machine cannot do it as it is: state in use or not writable, a package missing."""

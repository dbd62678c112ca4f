"""StateLock: one process at a time owns a state directory."""

import errno
import fcntl
import os
import weakref
from pathlib import Path

from conduit_py.errors import EnvironmentUnfit, StateLocked


class StateLock:
    """Held from `acquire` until `release` or the end of the process, even by `kill -9`.

    The lock belongs to the open file, not to the process: a second `acquire` is refused in the same
    process too. Child processes do not keep it alive, whether they exec or not.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def acquire(cls, directory: Path) -> "StateLock":
        """Lock an existing directory, or raise StateLocked naming the process that has it."""
        try:
            descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(directory, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_owner(descriptor)
        except OSError as error:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            if error.errno == errno.EWOULDBLOCK:
                raise _locked_error(directory, owner) from None
            raise unusable(directory, error) from error
        return cls(descriptor)

    def release(self) -> None:
        """Release the directory for another process. A second call has no effect."""
        if self._descriptor is not None:
            # The file stays: without it, two processes could lock two files of the same name.
            os.close(self._descriptor)
            self._descriptor = None


def unusable(directory: Path, error: OSError) -> EnvironmentUnfit:
    """The error for a state directory that cannot be created or written."""
    not_a_directory = isinstance(error, FileExistsError | NotADirectoryError)
    reason = "it is, or lies below, a file that is not a directory" if not_a_directory else error.strerror
    return EnvironmentUnfit(
        f"state directory {directory} cannot be used: {reason}",
        suggestion="choose a directory that this user may write to with --state",
    )


def _locked_error(directory: Path, owner: int | None) -> StateLocked:
    if owner == os.getpid():
        who = f"this process already (pid {owner})"
    else:
        who = f"process {owner}" if owner else "another process"
    return StateLocked(
        f"state directory {directory} is in use by {who}",
        suggestion="stop that process, or choose another directory with --state",
    )


def _write_owner(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _read_owner(descriptor: int) -> int | None:
    # The file is empty for a moment after another process has locked it.
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


_held: "weakref.WeakSet[StateLock]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    # Close-on-exec covers children that exec; one that only forks shares the open file and would hold
    # the lock after its parent's death. Closing its copy leaves the parent's lock as it is.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)

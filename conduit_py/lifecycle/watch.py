"""watch: reload a fleet when its files or secrets change, for as long as a server runs."""

import logging
from contextlib import aclosing

import trio

from conduit_py.config.definitions import Definitions
from conduit_py.errors import describe
from conduit_py.lifecycle.reloader import GONE_SECONDS, Reloader

log = logging.getLogger("conduit_py.server")

LOOK_SECONDS = 2.0
"""How often to look for changes without a notification, as on a network file system."""
QUIET_SECONDS = 0.2
"""How long files must not change before they are read: an editor may not have finished."""
PATIENCE_SECONDS = 5.0
SECRETS_SECONDS = 5.0
"""How often to look whether secrets were rotated."""


async def watch(reloader: Reloader, until: trio.Event) -> None:
    """Reload whenever files change, until the event. Files are read once they have not changed for a moment."""
    definitions = reloader.definitions
    watcher = _Watcher(definitions, until)
    while not until.is_set():
        await watcher.wait_for_change()
        # Waiting also ends after LOOK_SECONDS, and for files that are not ours.
        if until.is_set() or await _stamp(definitions) == definitions.seen:
            continue
        await _wait_for_quiet(definitions)
        try:
            await reloader.reload(gone_seconds=GONE_SECONDS)
        except Exception:  # a boundary: no file may end the server
            log.exception("the files could not be read")


async def watch_secrets(reloader: Reloader) -> None:
    """Look for rotated secrets until cancelled."""
    while True:
        await trio.sleep(SECRETS_SECONDS)
        try:
            await reloader.check_secrets()
        except Exception:  # a boundary: no file may end the server
            log.exception("the files of secrets could not be compared")


async def _stamp(definitions: Definitions) -> object:
    # In a thread: on a network file system a stat can take seconds.
    return await trio.to_thread.run_sync(definitions.stamp)


async def _wait_for_quiet(definitions: Definitions) -> None:
    """Wait until files stop changing, but not for ever: one that never does may be a log."""
    before = await _stamp(definitions)
    with trio.move_on_after(PATIENCE_SECONDS):
        while True:
            await trio.sleep(QUIET_SECONDS)
            now = await _stamp(definitions)
            if now == before:
                return
            before = now


class _Watcher:
    """Waits for changes in the relevant folders, by notifications of the operating system."""

    def __init__(self, definitions: Definitions, until: trio.Event) -> None:
        self._definitions = definitions
        self._until = until
        self._last_error = ""

    async def wait_for_change(self) -> None:
        """Return when something may have changed, after LOOK_SECONDS at the latest."""
        from watchfiles import awatch

        folders = [folder for folder in sorted(self._definitions.folders()) if folder.is_dir()]
        changes = awatch(
            *folders,
            watch_filter=lambda _, path: self._definitions.counts(path),
            debounce=400,
            step=50,
            rust_timeout=round(LOOK_SECONDS * 1000),
            yield_on_timeout=True,
            # Folders below hold no pipelines, but maybe their output, which changes all the time.
            recursive=False,
            stop_event=self._until,
        )
        try:
            # Closed at once: an abandoned generator would keep its watching thread until it is collected.
            async with aclosing(changes):
                await anext(changes, None)
        except Exception as error:  # a boundary: no failure to watch may end the server
            # Once for each reason: watching is tried again every two seconds, and the log would fill up.
            if self._last_error != (message := describe(error)):
                self._last_error = message
                log.warning("file changes are detected by polling, because watching fails: %s", message)
            await trio.sleep(LOOK_SECONDS)

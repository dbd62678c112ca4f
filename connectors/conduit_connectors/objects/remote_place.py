"""RemotePlace: a folder of a store of objects as the place of a dataset."""

import tempfile
from collections.abc import Iterable, Sequence
from posixpath import basename, join
from typing import Any

from conduit_connectors.objects.dataset_place import HIDDEN, StagedFile, is_outdated, staged_name
from conduit_connectors.objects.staged_parts import Grant, TaskGrant, abandoned_runs, new_grant, unreached
from conduit_connectors.objects.store import ObjectStore
from conduit_py.sdk import FatalError, PartId, TransientError


class _SpooledDraft:
    """A file without a name on this machine, until it is uploaded."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - `complete` or `discard` closes it

    def discard(self) -> None:
        self.file.close()


class RemotePlace:
    """A folder of a store. A file is uploaded when it is complete, so nobody ever sees a part of it.

    In an exactly-once pipeline it is uploaded to the hidden folder, and moved by the store after the commit.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._fence = 0
        self._task: TaskGrant | None = None
        self.owned: str | None = None

    def open(self) -> None:
        pass

    def claim(self, owned: str, fence: int, *, expected: bool) -> None:
        self.owned, self._fence = owned, fence

    def clear(self) -> None:
        assert self.owned is not None
        for info in list(self._store.list(self._hidden(self.owned), None)):
            if is_outdated(basename(info.name), self._fence):
                self._store.remove(info.name)

    def grant(self) -> Grant:
        grant = new_grant(self.owned, self._fence)
        self.store_note(f"{grant.folder}/{grant.marker}", b"")
        marker = self._store.find(self._hidden(f"{grant.folder}/{grant.marker}"))
        if marker is None:
            raise TransientError(
                f"{self._store.show(self._path)} does not have what was put there", suggestion="check the store"
            )
        for folder in abandoned_runs(self.list_staged(), marker.modified / 1e6):
            self.discard(folder, self.survey(folder))
        return grant

    def list_staged(self) -> list[tuple[str, float]]:
        hidden = self._hidden("")
        return [(info.name[len(hidden) :], info.modified / 1e6) for info in self._store.list(hidden.rstrip("/"), None)]

    def enter(self, grant: Grant, part: PartId) -> None:
        try:
            found = self._store.find(self._hidden(f"{grant.folder}/{grant.marker}"))
        except FatalError as error:
            raise unreached(self._store.show(self._path), error.message) from error
        if found is None:
            raise unreached(self._store.show(self._path))
        self.owned, self._fence, self._task = grant.folder, grant.fence, TaskGrant(grant, part)

    def survey(self, folder: str) -> dict[str, int]:
        return {basename(info.name): info.size for info in self._store.list(self._hidden(folder), None)}

    def discard(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            self._store.remove(self._hidden(f"{folder}/{name}"))

    def load_note(self, name: str) -> bytes | None:
        info = self._store.find(self._hidden(name))
        if info is None:
            return None
        content = self._store.open(info)
        try:
            return content.read_at(0, info.size)
        finally:
            content.close()

    def store_note(self, name: str, content: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            self._store.put(self._hidden(name), file)

    def create(self, suffix: str) -> _SpooledDraft:
        return _SpooledDraft(suffix)

    def complete(self, draft: _SpooledDraft, name: str) -> StagedFile:
        draft.file.flush()
        if self.owned is None:
            # At once under its name: it is whole, and one that was never acked may be there twice.
            waits_as, target = "", join(self._path, name)
        else:
            waits_as = staged_name(self._fence, draft.suffix, self._task)
            target = join(self._hidden(self.owned), waits_as)
        self._store.put(target, draft.file)
        draft.file.close()
        return StagedFile(waits_as, name)

    def show(self, owned: str | None, files: Sequence[StagedFile], *, again: bool = False) -> None:
        for each in files if owned is not None else ():
            try:
                self._store.move(join(self._hidden(owned or ""), each.waits_as), join(self._path, each.name))
            except FileNotFoundError:
                if not again:
                    raise

    def close(self) -> None:
        self._store.close()

    def _hidden(self, name: str) -> str:
        return join(self._path, HIDDEN, name)

"""StagedParts: what tasks of Spark have staged of a dataset, as the driver takes, checks, names and clears it.

The invariants M1 to M8 are in decision 59.
"""

import hashlib
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from conduit_py.sdk import PartId, PieceRefused, StageCleared, TransientError

MANIFEST_MAX = 4096
"""The most bytes that a task returns for a part. The list of more files is staged beside them."""
ABANDONED_SECONDS = 7 * 24 * 3600
"""After how long, by the clock of the store, what a run without a fence has staged belongs to nobody any more."""
RUN = "run-"
"""How the hidden folders of runs begin that have no owner."""
_OWNED = re.compile(r"[0-9a-f]{32}")
"""The names of the hidden folders of pipelines."""
_PART = re.compile(r"(?P<fence>\d{12})-(?P<run>[0-9a-f]{16})\.(?P<source>\d+)\.(?P<number>\d+)-[0-9a-f]{16}\..+")


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What a task needs to stage: the hidden folder, the fence and the run, for the names of its files."""

    folder: str
    fence: int
    run: str

    @property
    def marker(self) -> str:
        """The file in the folder by which a task checks that it reaches the place of the driver, in this run."""
        # Stores of tables take no files but those that end as data does.
        return f"{self.fence:012d}-{self.run}.grant.parquet"


class TaskGrant(NamedTuple):
    """What a task stages for."""

    grant: Grant
    part: PartId

    @property
    def prefix(self) -> str:
        """How the names of all files of this part begin, whichever attempt writes them."""
        return f"{self.grant.fence:012d}-{self.grant.run}.{self.part.source}.{self.part.number}-"

    def name(self, suffix: str) -> str:
        # M2: random, so that no attempt of a task ever writes to the file of another.
        return f"{self.prefix}{secrets.token_hex(8)}{suffix}"


class PartFile(msgspec.Struct, frozen=True, array_like=True):
    """A complete file of a part: where it waits, which folder of the dataset it is for, and how large it is.

    `about` is what a connector of tables has to say of it.
    """

    waits_as: str
    folder: str
    size: int
    about: bytes = b""


class PartManifest(msgspec.Struct, frozen=True, array_like=True):
    """The files of a part, in the order of their rows, or the name of the file that lists them."""

    part: PartId
    files: list[PartFile]
    listed_in: str = ""


class WaitingFiles(Protocol):
    """The hidden folders of a dataset."""

    def survey(self, folder: str) -> Mapping[str, int]:
        """Return the names and sizes of all files in a hidden folder."""
        ...

    def discard(self, folder: str, names: Iterable[str]) -> None:
        """Remove files of a hidden folder, and the folder if it belongs to a run and nothing is left in it."""
        ...

    def load_note(self, name: str) -> bytes | None: ...


class StagedParts:
    """The driver's side: one for each run in which tasks stage."""

    def __init__(self, place: WaitingFiles, grant: Grant, shown: str) -> None:
        self.grant = grant
        self._place = place
        self._shown = shown
        self._taken: dict[str, int] = {}
        """The files that were taken and are not sealed, with their sizes."""
        self._sealed: set[str] = set()
        """Those that an intent names, or may name, and that are not visible yet."""
        self._last: dict[int, int] = {}
        """By source, the number of the last part that was taken."""
        self._swept = False

    def take(self, piece: bytes) -> list[PartFile]:
        """Keep the files of a manifest, and return them in the order of their rows."""
        manifest = msgspec.msgpack.decode(piece, type=PartManifest)
        files = manifest.files
        if manifest.listed_in:
            listed = self._place.load_note(f"{self.grant.folder}/{manifest.listed_in}")
            if listed is None:
                raise self._missing(manifest.listed_in)
            files = msgspec.msgpack.decode(listed, type=list[PartFile])
        self._taken |= {file.waits_as: file.size for file in files}
        self._last[manifest.part.source] = manifest.part.number
        return files

    def seal(self) -> None:
        """Check that all files which were taken are there and whole, and remove those that no manifest names."""
        if not self._taken:
            return
        there = self._place.survey(self.grant.folder)
        for name, size in self._taken.items():
            # M4: before the commit, because no later error could bring a file back.
            if there.get(name) != size:
                raise self._missing(name)
        self._sealed |= self._taken.keys()
        self._taken = {}
        # M5: of attempts that died or came second.
        self._discard(name for name in there if self._is_lost(name))

    def mark_visible(self, names: Iterable[str]) -> None:
        self._sealed -= set(names)
        if not self._swept:
            # M3: a task of an earlier run may have written after `begin`. Once, because a commit has shown our fence.
            self._swept = True
            self._discard(name for name in self._place.survey(self.grant.folder) if self._is_fenced(name))

    def close(self) -> None:
        """Remove what this run has staged and never took, unless a commit may name some of it."""
        if self._sealed:
            return
        # What cannot be removed now is by the next run, or by age.
        with suppress(OSError, TransientError):
            there = self._place.survey(self.grant.folder)
            # Only of this run: another may have begun meanwhile.
            self._discard([name for name in there if self._is_of_run(name)])

    def _discard(self, names: Iterable[str]) -> None:
        self._place.discard(self.grant.folder, names)

    def _is_lost(self, name: str) -> bool:
        """Return True for a file of a part that was taken, which the manifest of that part does not name."""
        found = _PART.fullmatch(name)
        if found is None or found["run"] != self.grant.run or name in self._sealed:
            return False
        # Parts are taken in order, so nothing of this one or an earlier one will be taken any more.
        return int(found["number"]) <= self._last.get(int(found["source"]), -1)

    def _is_fenced(self, name: str) -> bool:
        found = _PART.fullmatch(name)
        return found is not None and int(found["fence"]) < self.grant.fence

    def _is_of_run(self, name: str) -> bool:
        found = _PART.fullmatch(name)
        return name == self.grant.marker or (found is not None and found["run"] == self.grant.run)

    def _missing(self, name: str) -> TransientError:
        return TransientError(
            f"{name} in {self._shown} is not what a task has staged there",
            suggestion="others must not change what tasks have staged; the next run stages it again",
        )


def new_grant(folder: str | None, fence: int) -> Grant:
    """Return a grant for a run: in the folder of its owner, or, in a pipeline without fences, in one of its own."""
    run = secrets.token_hex(8)
    return Grant(RUN + run if folder is None else folder, fence, run)


def unreached(shown: str, why: str = "what the driver has put there is not there") -> PieceRefused:
    return PieceRefused(
        f"executor {socket.gethostname()} does not reach the place that the driver writes to, {shown}: {why}",
        suggestion="use a folder or a store that all executors reach, with the credentials that are in its options",
    )


def owned_folder(owner: str) -> str:
    """Return the hidden folder of a pipeline. A hash: its id may have characters that file systems refuse."""
    return hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()


def clear_dead(
    place: WaitingFiles, files: Sequence[tuple[str, float]], now: float, age_seconds: float, owner: str | None
) -> StageCleared:
    """Remove what no commit can name any more, of all files as `folder/name` with their times."""
    dead = {path.split("/", 1)[0]: list[str]() for path, _ in files}
    old = abandoned_runs(files, now, age_seconds)
    fences = _current_fences(files)
    for path, modified in files:
        folder, _, name = path.partition("/")
        gone = owner is not None and folder == owned_folder(owner) and modified < now - age_seconds
        staged_by_owner = _OWNED.fullmatch(folder) is not None and fence_of(name) > 0
        # The process under the current fence has applied the last commit of all before, and removed what they left.
        outdated = staged_by_owner and fence_of(name) < fences.get(folder, 0)
        # Without a file of a driver no run goes on, and no commit names anything: only a zombie has written this.
        late = staged_by_owner and folder not in fences and modified < now - age_seconds
        if folder in old or gone or outdated or late:
            dead[folder].append(name)
    for folder, names in dead.items():
        if names:
            place.discard(folder, names)
    staged = [path for path, _ in files if path.startswith(RUN) or _OWNED.match(path)]
    removed = sum(map(len, dead.values()))
    return StageCleared(removed, len(staged) - removed)


def fence_of(name: str) -> int:
    """Return the fence under which a file was staged; 0 for one that has no such name."""
    text = name.partition("-")[0]
    return int(text) if len(text) == 12 and text.isdigit() else 0


def _current_fences(files: Iterable[tuple[str, float]]) -> dict[str, int]:
    """Return by folder the fence of its current run: that under which a driver has written last.

    It is not the highest one: a new state after one that was lost counts its fences from one, and its commits name
    files under those. What tasks write does not count: one of a run that ended may still write.
    """
    newest: dict[str, tuple[float, int]] = {}
    for path, modified in files:
        folder, _, name = path.partition("/")
        if (fence := fence_of(name)) and _PART.fullmatch(name) is None:
            # Of two at the same moment the lower fence, under which less is outdated.
            newest[folder] = max(newest.get(folder, (0.0, 0)), (modified, -fence))
    return {folder: -fence for folder, (_, fence) in newest.items()}


def abandoned_runs(files: Sequence[tuple[str, float]], now: float, age_seconds: float = ABANDONED_SECONDS) -> set[str]:
    """Return the folders of runs whose newest file is old, of all files as `folder/name` with their times."""
    newest: dict[str, float] = {}
    for path, modified in files:
        folder = path.split("/", 1)[0]
        if folder.startswith(RUN):
            newest[folder] = max(modified, newest.get(folder, 0.0))
    return {folder for folder, modified in newest.items() if modified < now - age_seconds}

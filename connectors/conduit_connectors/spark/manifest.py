"""Manifests: which batches of files are committed, and the ids of the newest records in them."""

import re
from collections.abc import Sequence

import msgspec

from conduit_connectors.spark.delivered_ids import DeliveredIds, Names
from conduit_connectors.spark.folder import Folder
from conduit_py.sdk import FatalError, TransientError

_FOLDER = "_conduit"
_STAGES = f"{_FOLDER}/plain"
_FORMAT = b"conduit-py batches 2\n"
_NAME = re.compile(r"(\d{12})\.json")


class Manifest(msgspec.Struct, frozen=True):
    """One committed batch: how many rows it has, in which folder, and where that was before."""

    batch: int
    rows: int
    folder: str
    stage: str


class Manifests:
    """The manifests of one folder of batches. Spark does not read their files, because of the leading underscore.

    A batch is committed when its manifest exists: what is not committed is removed, and what is committed but
    not yet where readers see it is put there, by `recover`.
    """

    def __init__(self, folder: Folder, remember: int) -> None:
        self._folder = folder
        _check_format(folder)
        self._remember = remember
        self._numbers = [int(match[1]) for name in folder.names(_FOLDER) if (match := _NAME.fullmatch(name))]
        self.written = DeliveredIds()
        self._kept: list[tuple[int, int]] = []

    @property
    def next(self) -> int:
        return self._numbers[-1] + 1 if self._numbers else 0

    def recover(self) -> None:
        """Finish what the last run had committed, remove what it had not, and load the ids that it wrote."""
        stages = {f"{_STAGES}/{name}" for name in self._folder.names(_STAGES)}
        # A batch is moved before the next one is committed, so only the last can be unmoved.
        if stages and self._numbers and (last := self._manifest(self._numbers[-1])).stage in stages:
            if self._folder.read(_names_file(last.batch)) is not None:
                self._folder.move(last.stage, last.folder)
                stages.remove(last.stage)
            else:
                # Power failed before both files were durable, so nothing of it was acked: it comes again.
                self._folder.remove(f"{_FOLDER}/{self._numbers.pop():012d}.json")
        for stage in stages:
            self._folder.remove(stage)
        for number in reversed(self._numbers):
            if len(self.written) >= self._remember:
                break
            names = self._names(number)
            for each in names:
                self.written.add(each)
            self._kept.insert(0, (number, _count(names)))

    def commit(self, stage: str, names: Sequence[Names]) -> int:
        """Commit a staged batch and return its number. Once the manifest exists, the batch is part of the data."""
        number = self.next
        self._folder.remove(_names_file(number))
        # Before the manifest: the manifest commits both.
        self._folder.create(_names_file(number), msgspec.msgpack.encode(names), alone=False)
        manifest = msgspec.json.encode(Manifest(number, _count(names), batch_folder(number), stage))
        if not self._folder.create(f"{_FOLDER}/{number:012d}.json", manifest):
            raise TransientError(
                f"batch {number} of {self._folder.url('')} was committed by another process",
                suggestion="give every destination a path of its own",
            )
        self._numbers.append(number)
        for each in names:
            self.written.add(each)
        self._kept.append((number, _count(names)))
        self._prune()
        return number

    def _prune(self) -> None:
        """Forget the ids of batches so old that none of their records can come again."""
        while len(self._kept) > 1 and sum(count for _, count in self._kept[1:]) >= self._remember:
            number, _ = self._kept.pop(0)
            for each in self._names(number):
                self.written.remove(each)
            self._folder.remove(_names_file(number))

    def _manifest(self, number: int) -> Manifest:
        return msgspec.json.decode(self._folder.read(f"{_FOLDER}/{number:012d}.json") or b"", type=Manifest)

    def _names(self, number: int) -> list[dict[str, list[bytes]]]:
        """The ids of the records of a batch; none if they were forgotten."""
        text = self._folder.read(_names_file(number))
        return [] if text is None else msgspec.msgpack.decode(text, type=list[dict[str, list[bytes]]])


def _check_format(folder: Folder) -> None:
    """Check the format that the folder declares: a later version may have written another one."""
    if folder.create(f"{_FOLDER}/format", _FORMAT):
        return
    found = folder.read(f"{_FOLDER}/format")
    if found != _FORMAT:
        raise FatalError(
            f"{folder.url('')} has the format {found!r}, not {_FORMAT!r}",
            suggestion="use the conduit-py that wrote it, or another path",
        )


def stage_folder(name: str) -> str:
    """Where a batch is written before it is committed: readers skip names that begin with an underscore."""
    return f"{_STAGES}/{name}"


def batch_folder(number: int) -> str:
    """Where readers see a batch."""
    return f"batch={number:012d}"


def _names_file(number: int) -> str:
    return f"{_FOLDER}/{number:012d}.names"


def _count(names: Sequence[Names]) -> int:
    return sum(len(each) for of_batch in names for each in of_batch.values())

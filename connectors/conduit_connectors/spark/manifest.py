"""Manifests: which batches of files are committed, and the delivery keys of the newest records in them."""

import re
from collections.abc import Sequence

import msgspec

from conduit_connectors.spark.folder import Folder
from conduit_py.sdk import FatalError, TransientError

KEY_SIZE = 16
_FOLDER = "_conduit"
_FORMAT = b"conduit-py batches 1\n"
_NAME = re.compile(r"(\d{12})\.json")


class Manifest(msgspec.Struct, frozen=True):
    """One committed batch: how many rows it has, and in which folder."""

    batch: int
    rows: int
    folder: str


class Manifests:
    """The manifests of one folder of batches, whose files Spark does not read because of their names.

    A batch is committed when its manifest exists: what is not committed is removed, and what is committed but
    not yet where readers see it is put there, by `recover`.
    """

    def __init__(self, folder: Folder, remember: int) -> None:
        self._folder = folder
        _check_format(folder)
        self._remember = remember
        self._numbers = [int(match[1]) for name in folder.names(_FOLDER) if (match := _NAME.fullmatch(name))]
        self.keys: set[bytes] = set()
        self._kept: list[tuple[int, int]] = []

    @property
    def next(self) -> int:
        return self._numbers[-1] + 1 if self._numbers else 0

    def recover(self) -> None:
        """Finish what the last run had committed, remove what it had not, and recall what it wrote."""
        for name in self._folder.names(f"{_FOLDER}/plain"):
            if name.isdecimal() and int(name) in self._numbers:
                self._folder.move(f"{_FOLDER}/plain/{name}", visible(int(name)))
            else:
                self._folder.remove(f"{_FOLDER}/plain/{name}")
        for number in reversed(self._numbers):
            if len(self.keys) >= self._remember:
                break
            keys = self._folder.read(_keys(number)) or b""
            self.keys.update(keys[at : at + KEY_SIZE] for at in range(0, len(keys), KEY_SIZE))
            self._kept.insert(0, (number, len(keys) // KEY_SIZE))

    def commit(self, number: int, keys: Sequence[bytes]) -> None:
        """The point at which a staged batch becomes part of the data."""
        self._folder.remove(_keys(number))
        self._folder.create(_keys(number), b"".join(keys))
        manifest = msgspec.json.encode(Manifest(number, len(keys), visible(number)))
        if not self._folder.create(f"{_FOLDER}/{number:012d}.json", manifest):
            raise TransientError(
                f"batch {number} of {self._folder.url('')} was committed by somebody else",
                suggestion="give every destination a path of its own",
            )
        self._numbers.append(number)
        self.keys.update(keys)
        self._kept.append((number, len(keys)))
        self._prune()

    def _prune(self) -> None:
        """Forget the keys of batches so old that none of their records can come again."""
        while len(self._kept) > 1 and sum(count for _, count in self._kept[1:]) >= self._remember:
            number, _ = self._kept.pop(0)
            old = self._folder.read(_keys(number)) or b""
            self.keys.difference_update(old[at : at + KEY_SIZE] for at in range(0, len(old), KEY_SIZE))
            self._folder.remove(_keys(number))


def _check_format(folder: Folder) -> None:
    """A folder of batches says so, and in which format: one of the future cannot be gone on with."""
    if folder.create(f"{_FOLDER}/format", _FORMAT):
        return
    found = folder.read(f"{_FOLDER}/format")
    if found != _FORMAT:
        raise FatalError(
            f"{folder.url('')} has the format {found!r}, not {_FORMAT!r}",
            suggestion="use the conduit-py that wrote it, or another path",
        )


def staged(number: int) -> str:
    """Where a batch is written before it is committed: readers skip names that begin with an underscore."""
    return f"{_FOLDER}/plain/{number:012d}"


def visible(number: int) -> str:
    """Where readers see a batch."""
    return f"batch={number:012d}"


def _keys(number: int) -> str:
    return f"{_FOLDER}/{number:012d}.keys"

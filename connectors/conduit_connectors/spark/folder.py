"""Folder: the file operations around what Spark writes: atomic small files, moves of folders, durability."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from conduit_connectors.file.disk import make_folders, sync_path
from conduit_py.sdk import FatalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SYNCS_AT_ONCE = 8


class Folder(Protocol):
    """A folder in whatever file system Spark writes to. Names are relative to it, with slashes."""

    def names(self, name: str) -> list[str]:
        """What is in a folder, sorted; nothing when there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None when there is no such file."""

    def create(self, name: str, content: bytes, *, alone: bool = True) -> bool:
        """Create a file durably and atomically; False when it exists.

        Without `alone` it is durable only after another file was created in the same folder.
        """

    def move(self, name: str, to: str) -> None:
        """Rename a folder durably. If only the target exists, an earlier attempt has moved it.

        Raises OSError if both exist: then the target is another folder, or a store was stopped while it copied.
        """

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its contents, if it exists."""

    def settle(self, name: str) -> None:
        """Make a folder, if it exists, and every file in it durable."""

    def url(self, name: str) -> str:
        """Its URL for Spark."""


def folder_of(session: "SparkSession", path: str) -> Folder:
    """The folder at a path or URL as Spark understands it."""
    if not hasattr(session, "_jsparkSession"):
        return _folder_beside_server(path)
    java: Any = session._jvm
    root = java.org.apache.hadoop.fs.Path(path)
    files = root.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    root = files.makeQualified(root)
    if root.toUri().getScheme() == "file":
        return LocalFolder(Path(root.toUri().getPath()))
    return HadoopFolder(java, files, root)


def _folder_beside_server(path: str) -> "LocalFolder":
    """With Spark Connect only a folder that the server shares with this machine can be reached."""
    address = urlsplit(path)
    if address.scheme not in ("", "file"):
        raise FatalError(
            f"{path} cannot be reached through Spark Connect, only folders that its server shares with this machine",
            suggestion="give such a folder, or a `master` in place of `remote`, or append with spark.Sink",
        )
    return LocalFolder(Path(path.removeprefix("file://") if address.scheme else path).absolute())


class LocalFolder:
    """A folder of this machine, or one that it shares with the executors."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, name: str) -> list[str]:
        path = self._root / name
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes, *, alone: bool = True) -> bool:
        path = self._root / name
        make_folders(path.parent)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, not a rename, which would replace a file that another process made meanwhile.
            os.link(half, path)
        except FileExistsError:
            return False
        finally:
            half.unlink()
        if alone:
            sync_path(path.parent)
        return True

    def move(self, name: str, to: str) -> None:
        source, target = self._root / name, self._root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(target)
        except FileNotFoundError:
            if not target.exists():
                raise
        sync_path(target.parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def settle(self, name: str) -> None:
        settled = self._root / name
        if not settled.exists():
            return  # A query without rows has no files.
        # With its parents: a folder whose name is lost is lost with its contents.
        above = [self._root / parent for parent in Path(name).parents]
        paths = [*above, settled, *settled.rglob("*")]
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
            # In parallel: the file system then writes its journal once for several of them.
            list(pool.map(sync_path, paths))

    def url(self, name: str) -> str:
        # Not `as_uri`: Hadoop does not unescape.
        return f"file://{self._root / name}"

    def files(self, name: str) -> list[Path]:
        """The files of a batch, without the checksums that Hadoop keeps beside them."""
        return [path for path in sorted((self._root / name).rglob("*")) if path.is_file() and path.name[0] not in "._"]


class HadoopFolder:
    """A folder in any other file system that Spark's Java can reach, as durable as that one is."""

    def __init__(self, java: Any, files: Any, root: Any) -> None:
        self._java = java
        self._files = files
        self._root = root

    def names(self, name: str) -> list[str]:
        path = self._path(name)
        if not self._files.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(path))

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes, *, alone: bool = True) -> bool:
        path, half = self._path(name), self._path(f"{name}.{os.getpid()}._half")
        if self._files.exists(path):
            return False
        stream = self._files.create(half, True)
        try:
            stream.write(content)
        finally:
            stream.close()
        return bool(self._files.rename(half, path))

    def move(self, name: str, to: str) -> None:
        source, target = self._path(name), self._path(to)
        # Renaming onto an existing folder would move the one into the other.
        if not self._files.exists(target):
            self._files.mkdirs(target.getParent())
            if self._files.rename(source, target):
                return
        if self._files.exists(source) or not self._files.exists(target):
            raise OSError(f"{source.toString()} could not be renamed to {target.toString()}")

    def remove(self, name: str) -> None:
        self._files.delete(self._path(name), True)

    def settle(self, name: str) -> None:
        """Nothing to do: distributed file systems and object stores make a file durable when it is closed."""

    def url(self, name: str) -> str:
        return str(self._path(name).toString())

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

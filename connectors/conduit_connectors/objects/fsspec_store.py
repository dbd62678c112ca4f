"""FsspecStore: files of any file system that fsspec has, such as SFTP, HDFS or FTP."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from posixpath import dirname
from typing import IO, Any

from conduit_connectors.objects.store import ObjectInfo, ObjectReplaced
from conduit_py.sdk import FatalError, TransientError

_TIMES = ("mtime", "modified", "LastModified", "last_modified", "updated", "modification_time", "created")
_COPIED_AT_ONCE = 2**20


class FsspecStore:
    """One file system. Names are its paths; listings are in the order of the names, folder after folder.

    The names of one folder are in memory at a time. A file system that gives no time of change cannot be read with
    on_replaced="reread".
    """

    def __init__(self, scheme: str, root: str, options: Mapping[str, Any]) -> None:
        self._root = root
        try:
            import fsspec
            from fsspec.utils import infer_storage_options

            # The address may have the host, the port and the user. Not from the cache, which keeps connections open.
            inferred = {
                key: value
                for key, value in infer_storage_options(root).items()
                if key in ("host", "port", "username", "password")
            }
            self._files: Any = fsspec.filesystem(scheme, **{"skip_instance_cache": True, **inferred, **options})
        except ImportError as error:
            raise FatalError(
                f"{scheme}:// is read and written through fsspec and a library that is not installed: {error}",
                suggestion="pip install 'conduit-dataflow[objects]', and the library that the message names",
            ) from error
        except Exception as error:  # a boundary: every file system has errors of its own
            hint = "correct the address, or what is in store_options"
            raise FatalError(f"{root} cannot be opened: {error}", suggestion=hint) from error

    def show(self, name: str) -> str:
        return f"{self._root}/{name.lstrip('/')}"

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        with self._errors(folder):
            try:
                entries = self._files.ls(folder or "/", detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return
        named = {each["name"].rstrip("/") + ("/" if each["type"] == "directory" else ""): each for each in entries}
        for name in sorted(named):
            if after is not None and name <= after and not after.startswith(name):
                continue
            if name.endswith("/"):
                yield from self.list(name[:-1], after)
            elif named[name]["type"] == "file" and name != after:
                yield self._info(named[name])

    def is_before(self, name: str, other: str) -> bool:
        return name < other

    def find(self, name: str) -> ObjectInfo | None:
        try:
            with self._errors(name):
                found = self._files.info(name)
        except FileNotFoundError:
            return None
        return self._info(found) if found["type"] == "file" else None

    def open(self, info: ObjectInfo) -> "FsspecBytes":
        found = self.find(info.name)
        if found is None:
            raise FileNotFoundError(info.name)
        if found.mark != info.mark:
            raise ObjectReplaced
        with self._errors(info.name):
            return FsspecBytes(self, info, self._files.open(info.name, "rb"))

    def remove(self, name: str) -> None:
        with self._errors(name):
            try:
                self._files.rm_file(name)
            except FileNotFoundError:
                return

    def put(self, name: str, file: IO[bytes]) -> None:
        file.seek(0)
        draft = f"{dirname(name)}/.{name.rsplit('/', 1)[-1]}.draft"
        with self._errors(name):
            self._files.makedirs(dirname(name), exist_ok=True)
            with self._files.open(draft, "wb") as target:
                while block := file.read(_COPIED_AT_ONCE):
                    target.write(block)
            self._files.mv(draft, name)

    def move(self, name: str, to: str) -> None:
        with self._errors(name):
            if not self._files.exists(name):
                raise FileNotFoundError(name)
            self._files.makedirs(dirname(to), exist_ok=True)
            self._files.mv(name, to)

    def close(self) -> None:
        # Not all file systems have a connection, and none says how to end it; that of SFTP has a client.
        client = getattr(self._files, "client", None)
        if client is not None:
            client.close()

    def _info(self, each: Mapping[str, Any]) -> ObjectInfo:
        modified = next((each[name] for name in _TIMES if each.get(name) is not None), None)
        micros = _microseconds(modified)
        tag = each.get("ETag") or each.get("etag") or f"{micros:x}-{each['size'] or 0:x}"
        return ObjectInfo(each["name"], each["size"] or 0, micros, str(tag))

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, ObjectReplaced):
            raise
        except PermissionError as error:
            raise FatalError(f"no access to {self.show(name)}: {error}", suggestion="check the credentials") from error
        except Exception as error:  # a boundary: every file system has errors of its own
            hint = "check that the server answers"
            raise TransientError(f"{self.show(name)}: {error}", suggestion=hint) from error


class FsspecBytes:
    """The bytes of an open file of another machine."""

    def __init__(self, store: FsspecStore, info: ObjectInfo, file: Any) -> None:
        self._store = store
        self._info = info
        self._file = file

    def read_at(self, offset: int, size: int) -> bytes:
        with self._store._errors(self._info.name):
            self._file.seek(offset)
            return bytes(self._file.read(size))

    def close(self) -> None:
        self._file.close()


def _microseconds(modified: Any) -> int:
    """Return a time as file systems give it: a number of seconds, a date, or its text; 0 if there is none."""
    if isinstance(modified, str):
        try:
            modified = datetime.fromisoformat(modified)
        except ValueError:
            return 0
    if isinstance(modified, datetime):
        modified = (modified if modified.tzinfo else modified.replace(tzinfo=UTC)).timestamp()
    elif isinstance(modified, date):
        return 0
    return int(modified * 1_000_000) if isinstance(modified, int | float) else 0

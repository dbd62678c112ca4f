"""CloudStore: objects of S3, Google Cloud Storage and Azure through obstore."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any

from conduit_connectors.objects.store import ObjectInfo, ObjectReplaced
from conduit_py.sdk import FatalError, TransientError

_PAGE_SIZE = 1000


class CloudStore:
    """One bucket or container. Names are keys.

    Listings are in the order of the service: of the bytes of the keys, or, as some services that are compatible with
    S3 do, folder by folder. A listing that is in neither order is refused, because it could not be continued.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        obstore = _import_obstore()
        self._root = root
        self._by_folder = False
        try:
            self._store = obstore.store.from_url(root, client_options={"allow_http": True}, **options)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            hint = "correct the address, or the names in store_options"
            raise FatalError(f"{root} cannot be opened: {_first_line(error)}", suggestion=hint) from error
        self._obstore = obstore

    def show(self, name: str) -> str:
        return f"{self._root}/{name}"

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        last = after
        with self._errors(folder):
            for page in self._obstore.list(self._store, folder or None, offset=after, chunk_size=_PAGE_SIZE):
                for each in page:
                    name = each["path"]
                    if last is not None:
                        self._check_order(last, name)
                    last = name
                    yield _info(each)

    def is_before(self, name: str, other: str) -> bool:
        return _by_folder(name) < _by_folder(other) if self._by_folder else name.encode() < other.encode()

    def find(self, name: str) -> ObjectInfo | None:
        try:
            with self._errors(name):
                return _info(self._obstore.head(self._store, name))
        except FileNotFoundError:
            return None

    def open(self, info: ObjectInfo) -> "CloudBytes":
        return CloudBytes(self, info)

    def read_range(self, info: ObjectInfo, offset: int, size: int) -> bytes:
        size = min(size, info.size - offset)
        if size <= 0:
            return b""
        options: dict[str, Any] = {"range": (offset, offset + size)}
        if info.mark.startswith('"'):
            options["if_match"] = info.mark
        with self._errors(info.name):
            return bytes(self._obstore.get(self._store, info.name, options=options).bytes())

    def remove(self, name: str) -> None:
        with self._errors(name):
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                return

    def put(self, name: str, file: IO[bytes]) -> None:
        file.seek(0)
        with self._errors(name):
            self._obstore.put(self._store, name, file, chunk_size=8 * 2**20, max_concurrency=4)

    def move(self, name: str, to: str) -> None:
        with self._errors(name):
            self._obstore.copy(self._store, name, to)
            self._obstore.delete(self._store, name)

    def close(self) -> None:
        pass

    def _check_order(self, before: str, name: str) -> None:
        if not self._by_folder and before.encode() >= name.encode():
            self._by_folder = True
        if self._by_folder and _by_folder(before) >= _by_folder(name):
            raise FatalError(
                f"{self._root} lists {before!r} before {name!r}, so a listing of it cannot be continued",
                suggestion="read folders of it that have no folders in them",
            )

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        exceptions = self._obstore.exceptions
        try:
            yield
        except FileNotFoundError:
            raise
        except exceptions.PreconditionError as error:
            raise ObjectReplaced from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            hint = "check the credentials, the region, and what they allow"
            raise FatalError(f"no access to {self.show(name)}: {_first_line(error)}", suggestion=hint) from error
        except exceptions.InvalidPathError as error:
            hint = "rename the object, or narrow the pattern so that it is not listed"
            raise FatalError(
                f"{self._root} has a name that cannot be used: {_first_line(error)}", suggestion=hint
            ) from error
        except exceptions.BaseError as error:
            hint = "check that the service answers, and the name of the bucket"
            raise TransientError(f"{self.show(name)}: {_first_line(error)}", suggestion=hint) from error


class CloudBytes:
    """The bytes of an object. Each range is asked for with the mark of the object, so all are of the same content."""

    def __init__(self, store: CloudStore, info: ObjectInfo) -> None:
        self._store = store
        self._info = info

    def read_at(self, offset: int, size: int) -> bytes:
        return self._store.read_range(self._info, offset, size)

    def close(self) -> None:
        pass


def _info(each: Mapping[str, Any]) -> ObjectInfo:
    modified: datetime = each["last_modified"]
    micros = int(modified.timestamp()) * 1_000_000 + modified.microsecond
    # A mark that is no etag, of a service without them, has no quotes: it cannot be a condition of a request.
    return ObjectInfo(each["path"], each["size"], micros, each["e_tag"] or f"{micros:x}-{each['size']:x}")


def _by_folder(name: str) -> list[bytes]:
    return [part.encode() for part in name.split("/")]


def _first_line(error: Exception) -> str:
    """Return the error without the structures of Rust that follow it, and without what the service answered."""
    return str(error).split("\n", 1)[0].split("<?xml", 1)[0].rstrip(": ")[:500]


def _import_obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise FatalError(
            "objects are read and written through obstore, which is not installed",
            suggestion="pip install 'conduit-dataflow[objects]'",
        ) from error
    return obstore

"""The options of the source of objects, and of the stores that it and the destination use."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, Self, TypedDict

from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_connectors.compression import CompressionOption
from conduit_connectors.file.csv_format import Delimiter, Names
from conduit_connectors.lines import LINE_SIZE_MAX
from conduit_connectors.objects.cloud_store import CloudStore
from conduit_connectors.objects.contents import ContentFormat
from conduit_connectors.objects.discovery import OnReplaced
from conduit_connectors.objects.fsspec_store import FsspecStore
from conduit_connectors.objects.pattern import CLOUD_SCHEMES, ObjectPattern, parse_place
from conduit_connectors.objects.store import LocalStore, ObjectStore
from conduit_py.sdk import DuplicateKeys, Options


class StoreOptions(Options):
    """How the store of objects is reached."""

    s3_endpoint: str | None = Field(default=None, description="the address of an S3 service that is not Amazon's")
    s3_region: str | None = Field(default=None, description="the region of the S3 service")
    s3_access_key: SecretStr | None = Field(default=None, description="the access key of the S3 service")
    s3_secret_key: SecretStr | None = Field(default=None, description="the secret that belongs to the access key")
    store_options: dict[str, SecretStr] = Field(
        default={},
        description="more settings of the client: those of obstore for S3, GCS and Azure, else those of fsspec; "
        "what is not set comes from the environment",
    )

    def open_store(self, scheme: str, root: str) -> ObjectStore:
        """Return the store. Raises FatalError if it cannot be used, or its library is not installed."""
        if scheme == "file":
            return LocalStore()
        options: dict[str, Any] = {name: value.get_secret_value() for name, value in self.store_options.items()}
        if scheme not in CLOUD_SCHEMES:
            return FsspecStore(scheme, root, options)
        secrets = {"access_key_id": self.s3_access_key, "secret_access_key": self.s3_secret_key}
        named = {"endpoint": self.s3_endpoint, "region": self.s3_region} | {
            name: value.get_secret_value() for name, value in secrets.items() if value is not None
        }
        return CloudStore(root, {name: value for name, value in named.items() if value is not None} | options)

    def label_folder(self, url: str) -> str:
        """Return where a folder is, in the same words however it is named; without a password."""
        scheme, root, path = parse_place(url)
        if scheme == "file":
            return os.path.realpath(path)
        user, at, host = root.removeprefix(f"{scheme}://").rpartition("@")
        kind = _SAME_STORES.get(scheme, scheme)
        # Stores may have buckets of the same name.
        places = {self.s3_endpoint} if scheme in CLOUD_SCHEMES else set()
        places |= {value.get_secret_value() for name, value in self.store_options.items() if _TELLS_STORE.search(name)}
        names = sorted({each.rpartition("@")[2].rstrip("/") for each in places if each})
        folder = "/".join([f"{user.partition(':')[0]}{at}{host}", *filter(None, path.split("/"))])
        return f"{kind}://{folder}" + "".join(f" of {name}" for name in names)


_SAME_STORES = {"s3a": "s3", "adl": "az", "azure": "az", "abfs": "az", "abfss": "az"}
_TELLS_STORE = re.compile(r"endpoint(_url)?$|account_name$|^host$", re.IGNORECASE)


class StoreArguments(TypedDict, total=False):
    """StoreOptions as a caller writes them, for editors and type checkers."""

    s3_endpoint: str | None
    s3_region: str | None
    s3_access_key: str | SecretStr | None
    s3_secret_key: str | SecretStr | None
    store_options: Mapping[str, str | SecretStr]


class SourceOptions(StoreOptions):
    """Options of the source of objects."""

    url: str | list[str] = Field(
        min_length=1,
        description="a path or an address, or several of one store: an object, a folder, or a pattern such as "
        '"s3://bucket/orders/**/*.jsonl.gz"',
    )
    format: ContentFormat = Field(default="auto", description='what an object holds; "auto": by its name')
    compression: CompressionOption = Field(default="auto", description='how it is compressed; "auto": by its name')
    follow: bool = Field(default=False, description="wait for more objects, in place of ending after the last one")
    poll_seconds: float = Field(default=10.0, gt=0, description="with follow: how often to look for objects")
    on_replaced: OnReplaced = Field(
        default="reread",
        description="what is read when objects are added or replaced: whatever is stored later; only what is "
        "listed after the last one; or the same, and an object that is stored later and listed before is an error",
    )
    after: Literal["keep", "delete", "move"] = Field(
        default="keep", description="what happens to an object when all of its records are durable elsewhere"
    )
    move_to: str | None = Field(default=None, description='with after="move": the folder, in the same store')
    line_size_max: int = Field(
        default=LINE_SIZE_MAX, ge=1024, description="the longest line, row or element in bytes; longer is refused"
    )
    parquet_memory_max: int = Field(
        default=256 * 2**20, ge=2**24, description="the most memory that decoding Parquet may take, in bytes"
    )
    duplicate_keys: DuplicateKeys = Field(
        default="refuse",
        description="what to do with a JSON object that has a key twice: refuse it, or keep the last value",
    )
    delimiter: Delimiter = ","
    header: Names | None = Field(default=None, description="the columns of CSV; None: the first row names them")

    @property
    def pattern(self) -> ObjectPattern:
        return ObjectPattern([self.url] if isinstance(self.url, str) else self.url)

    @field_validator("url")
    @classmethod
    def _names_one_store(cls, url: str | list[str]) -> str | list[str]:
        ObjectPattern([url] if isinstance(url, str) else url)
        return url

    @model_validator(mode="after")
    def _moves_elsewhere(self) -> Self:
        if (self.after == "move") != (self.move_to is not None):
            raise ValueError('after="move" and move_to go together')
        if self.move_to is not None:
            target, pattern = parse_place(self.move_to), self.pattern
            if (target.scheme, target.root) != (pattern.scheme, pattern.root):
                raise ValueError("move_to must be in the store of url: the same bucket, host, or this machine")
            if pattern.matches(f"{target.path.rstrip('/')}/x") or any(
                pattern.matches(f"{target.path.rstrip('/')}/{path.rsplit('/', 1)[-1]}") for path in pattern.exact
            ):
                raise ValueError('url names what is below move_to too, so it would be read again: use "…/_done"')
        return self

    @model_validator(mode="after")
    def _replacement_is_for_kept_objects(self) -> Self:
        if self.after != "keep" and self.on_replaced == "new-only":
            raise ValueError(
                f'on_replaced="new-only" goes with after="keep": with {self.after!r} all that is there is new'
            )
        return self


class SourceArguments(StoreArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | Sequence[str]]
    format: ContentFormat
    compression: CompressionOption
    follow: bool
    poll_seconds: float
    on_replaced: OnReplaced
    after: Literal["keep", "delete", "move"]
    move_to: str | None
    line_size_max: int
    parquet_memory_max: int
    duplicate_keys: DuplicateKeys
    delimiter: str
    header: Sequence[str] | None

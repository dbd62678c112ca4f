"""Tables of Iceberg catalogs, and what their errors mean."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from conduit_connectors.file.disk import sync_above
from conduit_connectors.iceberg.data_files import sync_files
from conduit_py.sdk import FatalError, TransientError

_TRANSFORM = re.compile(r"(year|month|day|hour|bucket|truncate)\((?:(\d+), *)?(.+)\)")
_CATALOG_HINT = 'give `catalog`: {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///lake"}'


def connect(properties: Mapping[str, SecretStr]) -> Catalog:
    """Return the catalog that these properties describe. Raises FatalError if they describe none."""
    plain = {name: value.get_secret_value() for name, value in properties.items()}
    try:
        return load_catalog(plain.pop("name", "default"), **plain)
    except (ValueError, NotInstalledError, ModuleNotFoundError) as error:
        shown = _without_secrets(str(error), plain)
        # Not with its cause: that may quote the password which is in the address.
        raise FatalError(f"`catalog` describes no catalog: {shown}", suggestion=_CATALOG_HINT) from None
    except Exception as error:
        found = translate(error, "the catalog")
        raise type(found)(_without_secrets(found.message, plain), suggestion=found.suggestion) from None


def _without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """Return a text of the library without what may be secret in the properties, however much of them it quotes."""
    secret = [value for name, value in properties.items() if name not in ("type", "name", "uri")]
    for url in (properties.get("uri", ""), unquote(properties.get("uri", ""))):
        place, _, query = url.partition("?")
        user = place.rpartition("@")[0].rpartition("/")[2] if "@" in place else ""
        secret += [query, place.rpartition("@")[0], user, user.partition(":")[2]]
    # The longest first: one may be a part of another.
    for each in sorted(filter(None, secret), key=len, reverse=True):
        text = text.replace(each, "***")
    return text


def catalog_label(properties: Mapping[str, SecretStr]) -> str:
    """Return which catalog these properties describe, in the same words for the same one; without anything secret."""
    plain = {name: value.get_secret_value() for name, value in properties.items()}
    scheme, _, rest = plain.get("uri", "").partition("://")
    if not rest:
        # The rest is in .pyiceberg.yaml. Glue is one for an account, whatever its name here.
        return (
            f"glue {plain.get('glue.id', '')}".strip() if plain.get("type") == "glue" else plain.get("name", "default")
        )
    # Passwords are before an "@", or after a "?".
    place = rest.partition("?")[0].rpartition("@")[2].rstrip("/")
    if scheme == "sqlite":
        place = os.path.realpath(place.removeprefix("/"))
    # A REST server has catalogs by warehouse. A database has them by name, and a warehouse is a folder to it.
    which = {"http": "warehouse", "https": "warehouse", "thrift": ""}.get(scheme, "name")
    return f"{scheme}://{place}" + (f" ({which} {plain[which]})" if which in plain else "")


def open_table(catalog: Catalog, name: str) -> Table:
    """Return a table that exists."""
    with table_errors(name):
        return catalog.load_table(name)


def create_table(catalog: Catalog, name: str, columns: Mapping[str, str], partition_by: Sequence[str]) -> Table:
    """Create a table that is missing, with these columns in Iceberg's types."""
    schema = _parse_columns(columns)
    spec = _parse_partitions(partition_by, schema)
    with table_errors(name):
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        try:
            table = catalog.create_table(name, schema, partition_spec=spec)
        except TableAlreadyExistsError:
            # Another process created it at the same moment.
            return catalog.load_table(name)
        sync_files(table.metadata.location, [table.metadata_location])
        if (place := urlsplit(table.metadata.location)).scheme in ("", "file"):
            sync_above(Path(unquote(place.path)))
        return table


def _parse_columns(columns: Mapping[str, str]) -> Schema:
    try:
        fields = [
            NestedField(field_id=number, name=name, type=kind, required=False)
            for number, (name, kind) in enumerate(columns.items(), 1)
        ]
        return Schema(*fields)
    except (ValueError, TypeError) as error:
        raise FatalError(
            f"`columns` cannot be parsed: {' '.join(str(error).split())[:300]}",
            suggestion='types are "string", "long", "int", "double", "boolean", "date", "time", "timestamp",'
            ' "timestamptz", "decimal(10, 2)", "binary", "uuid"',
        ) from error


def _parse_partitions(partition_by: Sequence[str], schema: Schema) -> PartitionSpec:
    fields = []
    for number, text in enumerate(partition_by):
        found = _TRANSFORM.fullmatch(text)
        kind, argument, column = found.groups() if found else ("identity", None, text)
        try:
            source = schema.find_field(column)
            transform = parse_transform(kind if argument is None else f"{kind}[{argument}]")
        except (ValueError, TypeError) as error:
            raise FatalError(
                f"`partition_by` has {text!r}, which is no column and no transform of one: {error}",
                suggestion='write a column, or "day(at)", "bucket(16, id)", "truncate(4, code)"',
            ) from error
        if kind != "identity" and find_spec("pyiceberg_core") is None:
            raise FatalError(
                f"`partition_by` has {text!r}, and transforms need pyiceberg_core, which is not installed",
                suggestion="pip install pyiceberg-core, or partition by columns as they are",
            )
        name = column if kind == "identity" else f"{column}_{kind}"
        fields.append(PartitionField(source_id=source.field_id, field_id=1000 + number, transform=transform, name=name))
    return PartitionSpec(*fields)


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Raise errors of the store and of the catalog as TransientError, those of the table as FatalError."""
    try:
        yield
    except (FatalError, TransientError, CommitFailedException):
        raise
    except Exception as error:
        raise translate(error, name) from error


def translate(error: Exception, name: str) -> FatalError | TransientError:
    """Return what an error of the library means."""
    text = " ".join(str(error).split())[:2000] or type(error).__name__
    if isinstance(error, NoSuchTableError | NoSuchNamespaceError):
        hint = 'correct `table`, or give `columns` to create it: {"id": "long", "name": "string"}'
        return FatalError(f"there is no Iceberg table {name}", suggestion=hint)
    if isinstance(error, UnauthorizedError | ForbiddenError | OAuthError):
        return FatalError(f"the catalog of {name} refuses us: {text}", suggestion="check the credentials in `catalog`")
    if isinstance(error, CommitFailedException | CommitStateUnknownException | RESTError | OSError):
        return TransientError(f"the Iceberg table {name}: {text}", suggestion="check the catalog and the store")
    if type(error).__module__.startswith(("sqlalchemy", "requests", "urllib3", "botocore")):
        return TransientError(f"the catalog of {name}: {text}", suggestion="check the catalog, and that it answers")
    return FatalError(f"the Iceberg table {name}: {text}", suggestion="check the table, and what it supports")

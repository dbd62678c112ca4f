"""Dataset: the name of what a connector reads or writes, for lineage."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Dataset(NamedTuple):
    """What a connector reads or writes, as OpenLineage names it. It never has a user, a password or a query."""

    namespace: str
    name: str

    @classmethod
    def at(cls, place: str) -> "Dataset":
        """Name a folder or an object: `s3://bucket/key`, or a path of this machine."""
        scheme, divider, rest = place.partition("://")
        if not divider or scheme == "file":
            return cls("file", str(Path(rest if divider else place).absolute()))
        host, _, path = rest.partition("?")[0].partition("/")
        return cls(f"{scheme}://{host.rpartition('@')[2]}", path.strip("/") or "/")

    @classmethod
    def tables(cls, url: str, names: Iterable[str], *, port: int, schema: str = "") -> "list[Dataset]":
        """Name tables of the database at this URL. Without names, that is the database."""
        above = [urlsplit(url).path.strip("/")] + ([schema] if schema else [])
        # A name with a dot has its schema, or in MariaDB its database, already.
        full = [".".join([*above[: 1 if schema else 0], each] if "." in each else [*above, each]) for each in names]
        return [cls.at_server(url, each, port=port) for each in full or above[:1]]

    @classmethod
    def at_server(cls, url: str, name: str, *, port: int) -> "Dataset":
        """Name what the server at this URL has, such as a queue. Of several servers the first one counts."""
        parts = urlsplit(url.partition(",")[0])
        scheme = parts.scheme.partition("+")[0].replace("postgresql", "postgres")
        return cls(f"{scheme}://{parts.hostname or 'localhost'}:{parts.port or port}", name)

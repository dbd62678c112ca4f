"""TypeCatalog and TableShape: how the rows of a table are read, and the schema that its records have."""

from collections.abc import Iterable, Mapping, Sequence

from conduit_connectors.change_queue import make_schema
from conduit_connectors.postgres.catalog import read_type_names, read_types
from conduit_connectors.postgres.column_values import CatalogType, type_of
from conduit_connectors.postgres.row_decoder import ColumnDecoder
from conduit_connectors.postgres.session import DatabaseSession
from conduit_py.sdk import SchemaField

ColumnShape = tuple[str, int, int]
"""The name of a column, the number of its type, and the modifier: 12 and 2 of numeric(12,2) in one number."""


class TypeCatalog:
    """The types that were met so far, with all that they are made of."""

    def __init__(self) -> None:
        self._types: dict[int, CatalogType] = {}
        self._names: dict[tuple[int, int], str] = {}

    async def learn(self, session: DatabaseSession, columns: Iterable[ColumnShape]) -> None:
        """Read what is missing for these columns: mostly nothing."""
        shapes = [(oid, modifier) for _, oid, modifier in columns]
        await read_types(session, (oid for oid, _ in shapes), self._types)
        await read_type_names(session, (_base_of(*shape, self._types) for shape in shapes), self._names)

    def forget(self) -> None:
        """A type was changed, and so may be those that are made of it."""
        self._types.clear()
        self._names.clear()

    def table_shape(self, collection: str, columns: Sequence[ColumnShape], key: Sequence[str]) -> "TableShape":
        """Return how rows with these columns are read. Call `learn` before."""
        return TableShape(collection, columns, key, self._types, self._names)


class TableShape:
    """The decoder and the schema of a table with certain columns."""

    def __init__(
        self,
        collection: str,
        columns: Sequence[ColumnShape],
        key: Sequence[str],
        types: Mapping[int, CatalogType],
        names: Mapping[tuple[int, int], str],
    ) -> None:
        kinds = [(name, type_of(oid, types)) for name, oid, _ in columns]
        self.decoder = ColumnDecoder(kinds)
        self.columns = [(name, _base_of(oid, modifier, types)) for name, oid, modifier in columns]
        """In the order of their values, and the same for changes and for rows that were selected."""
        # Whether a column may be NULL is not in the log, and the catalog only has what holds now. A key never is.
        fields = tuple(
            SchemaField(
                name, kind.field, name not in key, name in key, names.get(_base_of(oid, modifier, types), kind.name)
            )
            for (name, kind), (_, oid, modifier) in zip(kinds, columns, strict=True)
        )
        self.schema = make_schema(collection, fields)


def _base_of(oid: int, modifier: int, types: Mapping[int, CatalogType]) -> tuple[int, int]:
    """Return the type that a domain is made of: the log has the domain, and results of statements its base type."""
    while (found := types.get(oid)) is not None and found.kind == "d":
        oid, modifier = found.base, found.modifier
    return oid, modifier

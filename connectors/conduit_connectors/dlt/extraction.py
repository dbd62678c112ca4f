"""Extraction: one run of a dlt source, page by page, with a state of ours."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from dlt.common.configuration.container import Container
from dlt.common.configuration.resolve import inject_section
from dlt.common.configuration.specs import ConfigSectionContext
from dlt.common.json import json
from dlt.common.pipeline import StateInjectableContext
from dlt.common.schema import Schema
from dlt.extract import DltResource, DltSource
from dlt.extract.extractors import ImportFileMeta
from dlt.extract.hints import HintsMeta
from dlt.extract.items import TableNameMeta
from dlt.extract.pipe_iterator import ManagedPipeIterator
from dlt.extract.source import SourceInjectableContext, SourceSchemaInjectableContext

from conduit_py.sdk import FatalError

_STATE_KEY = "conduit"


class RowTable(NamedTuple):
    """Where dlt would load a row."""

    name: str
    key: tuple[str, ...]
    hard_delete: str | None
    """The column that tells that a row is deleted."""


class Page(NamedTuple):
    """What a resource yielded at once: a row, a list of rows, or a table."""

    resource: DltResource
    meta: Any
    content: Any


class Extraction:
    """One run of a source or a resource, from a state to a state.

    dlt gives the state to its resources through one container for the whole process. Each thread has its own part of
    it. So it is put there for each page, and several sources of one process do not meet.
    """

    def __init__(self, found: DltSource | DltResource, state: str | None) -> None:
        if isinstance(found, DltResource):
            found = DltSource(Schema(_STATE_KEY), found.section or _STATE_KEY, [found])
        self._source = found
        loaded: Any = {} if state is None else json.typed_loads(state)
        self._state = loaded
        sections = ("sources", found.section, found.name)
        # The name of the state is ours: it must stay the same when the user renames a module.
        section = ConfigSectionContext(pipeline_name=None, sections=sections, source_state_key=_STATE_KEY)
        contexts = [
            section,
            StateInjectableContext(state=loaded),
            SourceSchemaInjectableContext(found.schema),
            SourceInjectableContext(found),
        ]
        container = Container()
        with (
            inject_section(section),
            container.injectable_context(contexts[1]),
            container.injectable_context(contexts[2]),
            container.injectable_context(contexts[3]),
        ):
            # Declared as its base, which has no `set_context`.
            self._items = cast("ManagedPipeIterator", ManagedPipeIterator.from_pipes(found.resources.selected_pipes))
        self._items.set_context(contexts)
        self._tables: dict[tuple[str, str | None], RowTable] = {}

    @property
    def resources(self) -> list[DltResource]:
        return list(self._source.selected_resources.values())

    def pages(self) -> Iterator[Page]:
        for item in self._items:
            resource = self._source.resources.with_pipe(item.pipe)
            meta: Any = item.meta
            if isinstance(meta, ImportFileMeta):
                raise FatalError(
                    f"the resource {resource.name!r} yields files to be imported, and not their rows",
                    suggestion="have it yield rows or Arrow tables",
                )
            if isinstance(meta, HintsMeta) and meta.hints:
                # Hints that came with the page hold for the resource from here on, as when dlt loads it.
                resource.merge_hints(meta.hints, meta.create_table_variant)
                self._tables.clear()
                if meta.create_table_variant:
                    meta = TableNameMeta(str(meta.hints["table_name"]))
            yield Page(resource, meta, item.item)

    def table(self, page: Page, row: Any) -> RowTable:
        """Return the table of a row of this page."""
        resource = page.resource
        if resource.has_dynamic_table_name or resource.has_other_dynamic_hints:
            return _table(resource.compute_table_schema(row, page.meta))
        named = page.meta.table_name if isinstance(page.meta, TableNameMeta) else None
        if (resource.name, named) not in self._tables:
            self._tables[resource.name, named] = _table(resource.compute_table_schema(row, page.meta))
        return self._tables[resource.name, named]

    def state(self) -> str:
        """Return the state as it is now, as text."""
        return json.typed_dumps(self._state, sort_keys=True)

    def close(self) -> None:
        self._items.close()


def _table(schema: Any) -> RowTable:
    columns = schema.get("columns", {})
    deleted = next((name for name, each in columns.items() if each.get("hard_delete")), None)
    keys = tuple(name for name, each in columns.items() if each.get("primary_key"))
    return RowTable(str(schema["name"]), keys, deleted)

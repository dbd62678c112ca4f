"""Connectors are notified that they were created, updated or deleted: once, before `open`, again after a crash."""

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from conduit_py import Destination, Pipeline, Source, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, EndOfSource, registry
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import ConnectorEntry


class TableOptions(sdk.Options):
    """What a table is called, and what opens it."""

    table: str
    password: SecretStr = SecretStr("")


class Table(sdk.DestinationConnector[TableOptions]):
    """Notes its hooks and calls for all tables of a test."""

    notified: ClassVar[list[tuple[Any, ...]]] = []
    fails: ClassVar[set[str]] = set()

    def _hear(self, *what: Any) -> None:
        self.notified.append((*what, self.options.table))
        if what[0] in self.fails:
            raise OSError(f"{what[0]} failed")

    def on_created(self) -> None:
        self._hear("created")

    async def on_updated(self, before: dict[str, Any]) -> None:
        self._hear("updated", before)

    def open(self) -> None:
        self._hear("open")

    async def write(self, batch: Batch) -> None:
        pass

    def teardown(self) -> None:
        self._hear("teardown")


class Empty(sdk.SourceConnector[sdk.Options]):
    """Has no records, and keeps the position that it was opened with."""

    opened_at: ClassVar[list[bytes | None]] = []

    async def open(self, position: bytes | None) -> None:
        self.opened_at.append(position)

    async def read(self, n: int) -> list[sdk.Record]:
        raise EndOfSource


@pytest.fixture(autouse=True)
def _forget() -> None:
    Table.notified.clear()
    Table.fails.clear()
    Empty.opened_at.clear()


async def run(
    store: MemoryStore, *destinations: Destination, source: sdk.SourceConnector[Any] | None = None
) -> PipelineState:
    pipeline = Pipeline("p", sources=[Source("source", source or Empty())], destinations=destinations)
    return await Supervisor(pipeline, store).run()


def table(name: str = "orders", **options: Any) -> Destination:
    return Destination("lake", Table(table=name, **options))


async def test_a_new_connector_is_created_before_it_is_opened_and_only_the_first_time() -> None:
    store = MemoryStore()
    await run(store, table())
    await run(store, table())

    frame = [("open", "orders"), ("teardown", "orders")]
    assert Table.notified == [("created", "orders"), *frame, *frame]


async def test_changed_options_are_an_update_with_the_old_ones() -> None:
    store = MemoryStore()
    await run(store, table())
    Table.notified.clear()
    await run(store, table("invoices"))

    assert Table.notified[0] == ("updated", {"table": "orders", "password": ""}, "invoices")
    assert Table.notified[1] == ("open", "invoices")


async def test_a_changed_secret_is_an_update_and_is_never_stored() -> None:
    store = MemoryStore()
    await run(store, table(password="hunter2"))
    Table.notified.clear()
    await run(store, table(password="hunter3"))

    assert Table.notified[0][0] == "updated"
    assert "hunter" not in str(Table.notified)
    assert "hunter" not in str((await store.connectors("p"))["lake"])


@pytest.mark.parametrize("hook", ["created", "updated"])
async def test_a_hook_that_fails_keeps_the_connector_closed_and_is_called_again(hook: str) -> None:
    store = MemoryStore()
    if hook == "updated":
        await run(store, table())
    Table.notified.clear()
    Table.fails.add(hook)
    state = await run(store, table("invoices"))

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.message == f"lake: on_{hook} failed: OSError: {hook} failed"
    assert [what[0] for what in Table.notified] == [hook]

    Table.fails.clear()
    Table.notified.clear()
    assert (await run(store, table("invoices"))).status is Status.COMPLETED
    assert [what[0] for what in Table.notified] == [hook, "open", "teardown"]


PLUGIN = """
from conduit_py import sdk
from conduit_py.sdk import EndOfSource

notified = []

class Options(sdk.Options):
    slot: str

class Slot(sdk.SourceConnector[Options]):
    def on_created(self):
        notified.append(("created", self.options.slot))

    def on_deleted(self):
        notified.append(("deleted", self.options.slot))
        if self.options.slot == "stubborn":
            raise OSError("the slot is in use")

    async def read(self, n):
        raise EndOfSource
"""


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package with a source plugin `slot`, installed for the duration of a test."""
    information = tmp_path / "slots-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: slots\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[conduit_py.sources]\nslot = installed_slots:Slot\n")
    (tmp_path / "installed_slots.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.all_installed.cache_clear()
    yield importlib.import_module("installed_slots")
    del sys.modules["installed_slots"]
    registry.all_installed.cache_clear()


class TestDeleted:
    """Registered connectors can be made again from what is stored, to be notified that they are gone."""

    async def test_one_that_is_gone_is_notified_and_forgotten(self, slots: Any) -> None:
        store = MemoryStore()
        await run(store, table(), source=slots.Slot(slot="one"))
        pipeline = Pipeline("p", sources=[Source("renamed", slots.Slot(slot="two"))], destinations=[table()])
        await Supervisor(pipeline, store).run()

        assert slots.notified == [("created", "one"), ("deleted", "one"), ("created", "two")]
        assert sorted(await store.connectors("p")) == ["lake", "renamed"]

    async def test_one_that_cannot_be_made_again_is_forgotten(self) -> None:
        store = MemoryStore()
        await store.save_connector("p", "unknown", ConnectorEntry("source", "no such plugin", {}, "digest"))
        await store.save_connector("p", "unregistered", ConnectorEntry("destination", "", {}, "digest"))
        await store.save_connector("p", "changed", ConnectorEntry("source", "file", {"no such": "option"}, "digest"))
        state = await run(store, table())

        assert state.status is Status.COMPLETED
        assert sorted(await store.connectors("p")) == ["lake", "source"]

    async def test_one_whose_hook_fails_is_notified_again(self, slots: Any) -> None:
        store = MemoryStore()
        await run(store, table(), source=slots.Slot(slot="stubborn"))
        pipeline = Pipeline("p", sources=[Source("renamed", Empty())], destinations=[table()])
        for _ in range(2):
            state = await Supervisor(pipeline, store).run()
            assert state.error is not None
            assert state.error.message == "source: on_deleted failed: OSError: the slot is in use"

        assert slots.notified == [("created", "stubborn"), *[("deleted", "stubborn")] * 2]

    async def test_one_that_is_still_there_is_not(self) -> None:
        store = MemoryStore()
        await run(store, table())
        before = await store.connectors("p")
        await run(store, table())

        assert await store.connectors("p") == before


class TestAnotherPluginUnderTheSameId:
    """A position means something only to the connector that gave it."""

    async def test_the_old_one_is_deleted_and_the_new_one_starts_from_the_beginning(self, slots: Any) -> None:
        store = MemoryStore()
        await run(store, table(), source=slots.Slot(slot="one"))
        await store.save_positions("p", {"source": b"17"})
        await run(store, table())

        assert slots.notified == [("created", "one"), ("deleted", "one")]
        assert Empty.opened_at == [None]
        assert await store.positions("p") == {}

    async def test_the_same_plugin_with_other_options_goes_on_where_it_was(self) -> None:
        store = MemoryStore()
        await run(store, table())
        await store.save_positions("p", {"source": b"17"})
        await run(store, table("invoices"))

        assert Empty.opened_at == [None, b"17"]

"""Sources of changes on the page: a form for snapshots, what the server says to it, and the schema in a tap."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

SHOP = """
import trio

from conduit_py import Destination, Pipeline, Source, sdk
from conduit_connectors import generator, log


class Tables(sdk.SourceConnector[sdk.Options]):
    async def open(self, position):
        self.asked, self.wanted = trio.Event(), b"nothing"

    async def read(self, n):
        await self.asked.wait()
        self.asked = trio.Event()
        return sdk.Reading([], position=self.wanted)

    async def request_snapshot(self, request):
        if request.collection != "public.orders":
            raise sdk.SnapshotRefused(f"there is no table {request.collection}", suggestion="tables are public.orders")
        self.wanted = f"{request.collection} where {request.where}".encode()
        self.asked.set()


shop = Pipeline(
    "shop",
    sources=[Source("changes", Tables()), Source("made", generator.Source(rate=10))],
    destinations=[Destination("kept", log.Destination(level="debug"))],
)
"""


def test_a_table_is_read_again_by_a_form_at_its_source(
    open_page: "OpenPage", site: "Site", until: Callable[..., None]
) -> None:
    site.write("shop.py", SHOP)
    site.start()
    until(lambda: site.http.get("/api/v1/pipelines/shop").json()["progress"]["acked"])
    page = open_page(f"{site.url}/#/pipelines/shop")
    page.locator("[data-node=changes]").click()
    panel = page.get_by_role("complementary", name="Node changes")
    button = panel.get_by_role("button", name="Read a table again…")
    button.click()
    table = panel.get_by_label("Table")
    expect(table).to_be_focused()
    table.fill("orders")
    page.keyboard.press("Enter")
    expect(page.get_by_text("there is no table orders")).to_be_visible()
    expect(page.get_by_text("tables are public.orders")).to_be_visible()
    table.fill("public.orders")
    panel.get_by_label("Only rows where").fill("id > 3")
    panel.get_by_role("button", name="Read it").click()
    expect(page.get_by_text("changes reads public.orders again")).to_be_visible()
    expect(button).to_be_focused()

    positions = site.http.get("/api/v1/pipelines/shop/positions").json()["positions"]
    assert positions["changes"] == "cHVibGljLm9yZGVycyB3aGVyZSBpZCA+IDM="
    page.keyboard.press("Escape")
    page.locator("[data-node=made]").click()
    expect(page.get_by_role("complementary", name="Node made").get_by_role("button", name="Tap")).to_be_visible()
    expect(page.get_by_role("button", name="Read a table again…")).to_have_count(0)


ORDERS = """
import trio

from conduit_py import Pipeline, Record, sdk
from conduit_connectors import log


class Orders(sdk.SourceConnector[sdk.Options]):
    async def open(self, position):
        self.number = 0

    async def read(self, n):
        await trio.sleep(0.1)
        self.number += 1
        fields = (sdk.SchemaField("id", "integer", nullable=False, key=True, native="bigint"),)
        record = Record.of({"id": self.number}, position=b"%d" % self.number)
        record.metadata = {"opencdc.collection": "public.orders"}
        schemas = [sdk.CollectionSchema("public.orders", "v1", fields)] if self.number == 1 else []
        return sdk.Reading([record], schemas=schemas)


orders = Pipeline("orders", sources={"changes": Orders()}, destinations={"kept": log.Destination(level="debug")})
"""


def test_a_tap_shows_the_fields_that_a_source_announced(
    open_page: "OpenPage", site: "Site", until: Callable[..., None]
) -> None:
    site.write("orders.py", ORDERS)
    site.start()
    until(lambda: site.http.get("/api/v1/pipelines/orders").json()["progress"]["acked"])
    page = open_page(f"{site.url}/#/pipelines/orders")
    page.locator("[data-node=changes]").click()
    tap = page.get_by_role("region", name="Record tap")
    tap.get_by_role("button", name="Tap").click()
    summary = tap.get_by_text("Schema of public.orders, version v1: 1 field")
    summary.click()

    expect(tap.locator(".source-schema tbody tr")).to_have_text(["idintegerbigintkey, not null"])

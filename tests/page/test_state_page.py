"""A window says on the page what it keeps, and up to which time it has all records."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

WINDOWS = """
from conduit_connectors import file, sqlite
from conduit_processors import window
from conduit_py import Destination, Pipeline, Processor, Source

clicks = Pipeline(
    "clicks",
    sources=[Source("web", file.Source(path="clicks.jsonl", format="json", tail=True))],
    processors=[Processor("visits", window.Session(time="at", key="user", gap_seconds=600, out_of_order_seconds=60))],
    destinations=[Destination("out", sqlite.Destination(path="visits.db", table="visits"))],
    delivery="exactly_once",
)
"""


def test_keys_bytes_and_the_watermark_are_beside_their_window(
    open_page: "OpenPage", site: "Site", tmp_path: Path
) -> None:
    clicks = [{"at": f"2026-11-18T10:0{minute}:00Z", "user": user} for minute, user in enumerate(("ann", "bob", "ann"))]
    (tmp_path / "clicks.jsonl").write_text("".join(f"{json.dumps(click)}\n" for click in clicks))
    site.write("clicks.py", WINDOWS)
    page = open_page(f"{site.start().url}/#/pipelines/clicks")

    page.locator("[data-node=visits]").click()
    panel = page.get_by_role("complementary", name="Node visits")
    # Two sessions are open, and beside them the window keeps its watermark.
    expect(panel).to_contain_text("3 keys")
    expect(panel).to_contain_text("2026-11-18T10:01:00Z")

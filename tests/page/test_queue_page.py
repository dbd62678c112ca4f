"""A source over a shared queue says on the page what it holds and what it met."""

from pathlib import Path
from typing import TYPE_CHECKING

from conduit_connectors.sqlite_queue import SqliteQueue
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

WORKER = """
from conduit_connectors import log, sqlite_queue
from conduit_py import Destination, Pipeline, Source

worker = Pipeline(
    "worker",
    sources=[Source("work", sqlite_queue.Source(path="work.db", messages="uri", allowed_prefixes=["."]))],
    destinations=[Destination("out", log.Destination())],
)
"""


def test_leases_and_duplicates_are_beside_their_source(open_page: "OpenPage", site: "Site", tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    queue = SqliteQueue(tmp_path / "work.db")
    queue.open()
    queue.send([str(tmp_path / name).encode() for name in ("a.jsonl", "a.jsonl", "missing.jsonl")])
    site.write("worker.py", WORKER)
    page = open_page(f"{site.start().url}/#/pipelines/worker")

    page.locator("[data-node=work]").click()
    panel = page.get_by_role("complementary", name="Node work")
    expect(panel).to_contain_text("leases")
    expect(panel).to_contain_text("held")
    expect(panel).to_contain_text("duplicates")
    expect(panel).to_contain_text("failed")
    queue.close()

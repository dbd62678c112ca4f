"""A pipeline on Spark on the page: what it runs on, what holds it up, and what cannot be seen of it."""

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

# Nobody listens there, so no Java is started.
FILE = """
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source, Spark

there = Pipeline(
    "there",
    sources=[Source("in", file.Source(path="in.jsonl", format="json"))],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    description="far away",
    engine=Spark(master="spark://127.0.0.1:1"),
)
"""


def test_it_says_where_it_runs_and_why_it_does_not(open_page: "OpenPage", site: "Site") -> None:
    (site.folder / "in.jsonl").write_text('{"n": 1}\n')
    site.write("there.py", FILE)
    site.start()
    page = open_page(site.url)
    row = page.locator("[data-row=there]")

    expect(row).to_contain_text("on Spark (spark://127.0.0.1:1) · far away")
    expect(row.locator(".cell-why")).to_contain_text("no Spark master answers")
    page.goto(f"{site.url}/#/pipelines/there/nodes/in")
    expect(page.locator(".pipeline-facts")).to_contain_text("on Spark (spark://127.0.0.1:1)")
    expect(page.get_by_label("Record tap")).to_contain_text("cannot be seen here")
    expect(page.get_by_role("button", name="Tap", exact=True)).to_have_count(0)

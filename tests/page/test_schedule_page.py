"""A pipeline with a schedule on the page: when it runs next, and a button that does not wait for that."""

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

NIGHTLY = """
from conduit_connectors import generator, log
from conduit_py import Destination, Pipeline, Source

source = Source("orders", generator.Source(count=3, fields={"id": "index"}), schedule="0 0 29 2 *")
nightly = Pipeline("nightly", sources=[source], destinations=[Destination("lake", log.Destination())])
"""


def test_the_next_run_is_shown_and_can_be_started_now(open_page: "OpenPage", site: "Site") -> None:
    site.write("nightly.py", NIGHTLY)
    page = open_page(site.start().url)
    row = page.locator("[data-row=nightly]")
    expect(row.locator(".status")).to_have_text("waiting")
    expect(row.locator(".why")).to_contain_text(re.compile(r"next run .*20\d\d"))
    row.get_by_role("button", name="Start nightly").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()

    page.goto(f"{site.url}/#/pipelines/nightly")
    expect(page.locator(".tile", has_text="Delivered")).to_have_attribute("title", "3 in all")
    expect(page.locator(".tile", has_text="Next run")).to_contain_text(re.compile(r"20\d\d"))

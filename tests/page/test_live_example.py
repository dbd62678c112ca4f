"""What `make demo-page` serves is all that the page can show: flow, pressure, trouble, dead letters, an end."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

ROOT = Path(__file__).parent.parent.parent


def test_the_live_example_shows_what_the_page_can(open_page: "OpenPage", site: "Site") -> None:
    site.write("shop.py", (ROOT / "examples" / "live" / "shop.py").read_text())
    page = open_page(site.start().url)

    expect(page.locator("[data-row=invoices]")).to_contain_text("KeyError: 'vat'")
    expect(page.locator("[data-row=backfill]")).to_contain_text("completed")
    expect(page.locator("[data-row=clickstream] .cell-why")).to_contain_text("warehouse")
    expect(page.locator("[data-row=orders] .cell-letters")).to_have_attribute("data-some", "true")


def test_make_serves_it() -> None:
    said = subprocess.run(["make", "--dry-run", "demo-page"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "conduit-py serve --pipelines examples/live --state .demo-page" in said.stdout

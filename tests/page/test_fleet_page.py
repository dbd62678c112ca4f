"""The fleet on the page: every pipeline, found, started and stopped, by mouse and by keyboard."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, Route, expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

Until = Callable[..., None]


def test_every_pipeline_is_listed_with_its_status_those_in_trouble_first(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(shop.url)

    rows = page.locator(".fleet-rows [role=row]")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("broken")
    expect(rows.nth(0)).to_contain_text("degraded")
    expect(rows.nth(0)).to_contain_text("order 0 is too small")
    expect(page.locator("[data-row=flowing]")).to_contain_text("running")
    expect(page.locator("[data-row=pressed] .cell-why")).to_contain_text("slow")


def test_rates_are_live(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(shop.url)

    number = page.locator("[data-row=flowing] .cell-rate .number")
    expect(number).not_to_have_text("–/s")
    page.wait_for_function(
        """() => {
            const rate = parseFloat(document.querySelector("[data-row=flowing] .cell-rate .number").textContent);
            return rate > 100 && rate < 300;
        }"""
    )


def test_a_filter_and_a_status_choose_and_the_address_keeps_both(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(shop.url)
    rows = page.locator(".fleet-rows [role=row]")
    expect(rows).to_have_count(3)

    page.keyboard.press("/")
    page.keyboard.type("orders")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="running").click()
    assert page.url.endswith("#/?q=orders&status=running")
    page.reload()
    expect(rows).to_have_count(1)

    page.get_by_role("searchbox").fill("nothing like it")
    page.get_by_role("button", name="Show all").click()
    expect(rows).to_have_count(3)


def test_the_keyboard_alone_stops_and_starts_a_pipeline(open_page: "OpenPage", site: "Site", until: Until) -> None:
    site.write("one.py", ONE)
    page = open_page(site.start().url)
    expect(page.locator("[data-row=two]")).to_contain_text("running")

    tab_to(page, "[data-roving=one]")
    page.keyboard.press("ArrowDown")
    expect(page.locator("[data-roving=two]")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Stop two")).to_be_focused()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop two?")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Stop two")).to_be_focused()
    assert site.status("two") == "running"

    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Stop")).to_be_focused()
    for _ in range(6):  # the focus stays in the dialog, or with the browser itself
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    dialog.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-row=two]")).to_contain_text("stopped by user")
    assert site.status("two") == "stopped"

    page.locator("[data-roving=two]").focus()
    page.keyboard.press("s")
    expect(dialog).to_contain_text("Start two?")
    page.keyboard.press("Enter")
    until(lambda: site.status("two") == "running")
    expect(page.locator("[data-row=two]")).to_contain_text("running")
    assert site.status("one") == "running"


def test_letters_and_arrows_move_in_the_list_without_a_focus_first(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/?order=name")
    expect(page.locator(".fleet-rows [role=row]")).to_have_count(3)
    focused = "() => document.activeElement.dataset.roving ?? null"
    assert page.evaluate(focused) is None

    page.keyboard.press("j")
    assert page.evaluate(focused) == "broken"
    page.keyboard.press("j")
    assert page.evaluate(focused) == "flowing"
    page.get_by_role("searchbox").focus()
    page.keyboard.press("j")  # a letter of a word, where somebody types
    expect(page.get_by_role("searchbox")).to_have_value("j")
    page.keyboard.press("Escape")
    expect(page.locator(".fleet-rows [role=row]")).to_have_count(3)

    page.reload()
    expect(page.locator(".fleet-rows [role=row]")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == "broken"
    page.keyboard.press("Enter")
    expect(page.locator(".graph-node").first).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def test_a_server_that_goes_is_missed_and_found_again(open_page: "OpenPage", site: "Site") -> None:
    site.write("one.py", ONE)
    port = site.start().port
    page = open_page(site.url)
    expect(page.locator(".lamp")).to_have_text("Live")

    site.kill()
    expect(page.locator(".lamp")).to_have_text("Disconnected")
    expect(page.locator(".banner")).to_contain_text("Connection lost.")
    expect(page.locator(".banner")).to_contain_text("Trying again in")
    expect(page.locator("[data-row=one]")).to_be_visible()

    # The page tries by itself, too: until the button was clicked, its attempts are ended here.
    attempts: list[str] = []

    def refuse(route: Route) -> None:
        attempts.append(route.request.url)
        route.abort()

    page.route("**/api/v1/**", refuse)
    site.start(port=port)
    before = len(attempts)
    page.get_by_role("button", name="Try now").click()
    while len(attempts) == before:
        page.wait_for_timeout(20)
    page.unroute("**/api/v1/**", refuse)
    expect(page.locator(".lamp")).to_have_text("Live")
    expect(page.locator(".banner")).to_have_count(0)


def test_a_server_without_pipelines_says_how_to_give_it_some(open_page: "OpenPage", site: "Site") -> None:
    page = open_page(site.start().url)

    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_visible()
    expect(page.locator("main")).to_contain_text("conduit-py serve --pipelines")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_colours_follow_the_system_until_one_is_chosen(open_page: "OpenPage", shop: "Site", dark: bool) -> None:
    page = open_page(shop.url, dark=dark)
    expect(page.locator("[data-row=flowing]")).to_be_visible()

    assert brightness(page) < 60 if dark else brightness(page) > 200
    page.keyboard.press("c")
    assert brightness(page) > 200
    page.keyboard.press("c")
    assert brightness(page) < 60
    page.reload()
    assert brightness(page) < 60


def brightness(page: Page) -> float:
    """Of what is behind everything, from 0 to 255."""
    colour: list[int] = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    return sum(colour[:3]) / 3


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until it has the focus, as somebody without a mouse would."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"{selector} cannot be reached with the Tab key")


def test_a_broken_file_is_shown_until_it_is_right(open_page: "OpenPage", site: "Site") -> None:
    site.write("one.py", ONE)
    site.write("orders.py", "this is no Python\n")
    page = open_page(site.start("--watch").url)
    problems = page.get_by_role("region", name="Problems in the pipeline files")
    expect(problems).to_contain_text("orders.py:1")
    expect(page.locator(".fleet-rows [role=row]")).to_have_count(2)

    site.write("orders.py", ONE.replace('"one"', '"three"').replace('"two"', '"four"'))
    expect(page.locator(".fleet-rows [role=row]")).to_have_count(4)
    expect(problems).to_have_count(0)


ONE = '''
"""Two quiet pipelines."""
from conduit_connectors import generator, memory
from conduit_py import Destination, Pipeline, Source

def quiet(id):
    return Pipeline(id, sources=[Source("in", generator.Source(rate=1, fields={"id": "index"}))],
        destinations=[Destination("out", memory.Destination(into=[]))])

one, two = quiet("one"), quiet("two")
'''


def test_pipelines_is_the_address_of_the_fleet_too(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines")

    expect(page.locator(".fleet-rows [role=row]")).to_have_count(3)


def test_a_question_ends_with_the_page_that_asked_it(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(shop.url)
    page.locator("[data-row=flowing]").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("dialog")).to_contain_text("Stop flowing?")
    page.evaluate("location.hash = '#/pipelines/pressed'")

    expect(page.get_by_role("heading", level=1)).to_contain_text("pressed")
    expect(page.get_by_role("dialog")).to_have_count(0)

"""A pipeline on the page: its graph flows, its pressure shows, its records can be seen, its errors are explained."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site


def test_the_graph_is_live(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/flowing")

    expect(page.locator(".graph-node")).to_have_count(3)
    expect(page.locator("[data-edge='web cents']")).to_have_attribute("data-level", "free")
    page.wait_for_function(
        "() => Number(document.querySelector(\"[data-edge='web cents'] .edge\").getAttribute('stroke-width')) > 4"
    )
    read = page.locator(".tile", has_text="Read")
    page.wait_for_function(
        "text => document.querySelector('.tile-value').textContent !== text",
        arg=read.locator(".tile-value").inner_text(),
    )
    expect(page.locator(".series").first).to_contain_text("delivered")
    page.wait_for_function("() => document.querySelectorAll('.plot canvas').length === 2")


def test_charts_show_what_was_before_the_page_was_opened_over_the_whole_span(
    open_page: "OpenPage", shop: "Site", until: Callable[..., None]
) -> None:
    until(lambda: len(shop.http.get("/api/v1/pipelines/flowing/history").raise_for_status().json()["samples"]) >= 4)
    page = open_page(f"{shop.url}/#/pipelines/flowing")
    charts = page.locator(".plot")
    opened = page.evaluate("Date.now() / 1000")

    for _ in range(2):
        expect(charts).to_have_count(2)
        # Of rates there is none before the second sample; the page itself has seen nothing of these seconds.
        page.wait_for_function(
            "before => [...document.querySelectorAll('.plot')].every((plot) => (plot.dataset.since || 1e12) < before)",
            arg=opened - 4,
        )
        page.reload()
    for name, seconds in (("1 min", "60"), ("15 min", "900"), ("5 min", "300")):
        page.get_by_role("button", name=name, exact=True).click()
        for chart in (charts.first, charts.last):
            expect(chart).to_have_attribute("data-seconds", seconds)


def test_an_edge_is_red_where_what_follows_is_too_slow_and_the_node_says_what_it_waits_for(
    open_page: "OpenPage", shop: "Site"
) -> None:
    page = open_page(f"{shop.url}/#/pipelines/pressed")

    expect(page.locator("[data-edge='flood slow']")).to_have_attribute("data-level", "blocked")
    expect(page.locator("[data-edge='flood quick']")).not_to_have_attribute("data-level", "blocked")
    expect(page.locator("[data-node=flood] .node-block")).to_contain_text("waits for room downstream")
    expect(page.locator("[data-node=slow] .node-block")).to_contain_text("writes")


def test_an_error_comes_with_its_cause_and_a_suggestion(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/broken")

    shown = page.get_by_role("region", name="Error")
    expect(shown).to_contain_text("ValueError: order 0 is too small")
    expect(shown).to_contain_text("Suggestion")
    expect(shown).to_contain_text("dead_letters=")
    expect(shown.get_by_role("link", name="picky")).to_be_visible()
    expect(page.locator("[data-node=picky]")).to_have_attribute("data-mood", "failed")


def test_the_reason_of_a_recovery_stays_visible_when_the_pipeline_runs_again(
    open_page: "OpenPage", site: "Site", until: Callable[..., None]
) -> None:
    site.write("again.py", AGAIN)
    site.start()
    until(lambda: site.http.get("/api/v1/pipelines/again").json()["progress"]["acked"])
    page = open_page(f"{site.url}/#/pipelines/again")

    expect(page.locator(".pipeline-facts")).to_contain_text("running")
    events = page.get_by_role("region", name="Events").get_by_role("listitem")
    expect(events).to_have_count(2)
    expect(events.nth(0)).to_contain_text("recovering")
    expect(events.nth(0)).to_contain_text("failed in lake (failure 3 in a row); next try in ")
    expect(events.nth(0)).to_contain_text("the lake is away [run.transient]")
    expect(events.nth(1)).to_contain_text("is started (asked by server start)")


def test_a_rotated_secret_is_why_a_pipeline_was_restarted(
    open_page: "OpenPage", site: "Site", until: Callable[..., None]
) -> None:
    secret = site.folder / "rate"
    secret.write_text("5")
    site.write("secretive.yaml", SECRETIVE)
    page = open_page(f"{site.start().url}/#/pipelines/secretive")
    expect(page.locator(".graph-node")).to_have_count(2)
    secret.write_text("7")
    shown = page.get_by_role("region", name="Problem with the definition")
    expect(shown).to_contain_text("is not what it was when it was read; the old one is in use")
    site.http.post("/api/v1/reload").raise_for_status()

    expect(shown).to_have_count(0)
    events = page.get_by_role("region", name="Events")
    expect(events).to_contain_text("its file is the same: a secret or something else that it uses is not")
    expect(events).to_contain_text("is started (asked by file reload)")


def test_a_pipeline_in_a_broken_file_is_not_just_unknown(open_page: "OpenPage", site: "Site") -> None:
    site.write("orders.py", "this is no Python\n")
    page = open_page(f"{site.start().url}/#/pipelines/orders")

    expect(page.get_by_role("heading", name="There is no pipeline orders")).to_be_visible()
    expect(page.get_by_role("region", name="Problems in the pipeline files")).to_contain_text("orders.py:1")


def test_a_tap_shows_what_a_node_does_to_records(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/flowing")
    page.locator("[data-node=cents]").click()
    panel = page.get_by_role("complementary", name="Node cents")
    panel.get_by_role("button", name="Tap").click()

    sample = panel.locator(".record-sample").first
    expect(sample).to_contain_text("changed")
    expect(sample.locator("[data-change=removed]")).to_contain_text("payload.after.amount")
    expect(sample.locator("[data-change=added]")).to_contain_text("payload.after.cents")
    expect(panel.locator(".tap-dropped")).to_contain_text("passed by unseen")

    panel.get_by_role("button", name="Stop tap").click()
    expect(panel.locator(".tap-state")).to_contain_text("Stopped.")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(page.locator("[data-node=cents]")).to_be_focused()


def test_the_keyboard_walks_along_the_graph(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/flowing")
    page.locator("[data-node=web]").focus()

    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-node=cents]")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-node=lake]")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="cents")).to_be_focused()
    assert page.url.endswith("#/pipelines/flowing/nodes/cents")


def test_arrows_enter_the_graph_without_a_focus_first(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/flowing")
    expect(page.locator(".graph-node")).to_have_count(3)

    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-node=web]")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-node=cents]")).to_be_focused()


def test_positions_are_set_back_only_while_stopped_and_after_a_question(
    open_page: "OpenPage", site: "Site", until: Callable[..., None]
) -> None:
    site.write("few.py", FEW)
    site.start()
    until(lambda: site.status("few") == "completed")
    page = open_page(f"{site.url}/#/pipelines/few/positions")
    positions = page.get_by_role("region", name="Positions")
    expect(positions).to_contain_text("4")

    reset, dialog = positions.get_by_role("button", name="Reset…"), page.get_by_role("dialog")
    reset.click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(reset).to_be_focused()
    reset.click()
    dialog.get_by_role("button", name="Reset").click()
    expect(positions).to_contain_text("the beginning")
    assert site.http.get("/api/v1/pipelines/few/positions").json() == {"positions": {"in": None}}

    positions.get_by_role("button", name="Set…", exact=True).click()
    expect(positions.get_by_role("textbox")).to_be_focused()
    page.keyboard.type("Z2VuZXJhdG9yOjE6Mg==")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Set position").click()
    expect(positions).to_contain_text("generator:1:2")
    expect(positions.get_by_role("button", name="Set…", exact=True)).to_be_focused()

    page.get_by_role("button", name="Replay from…").click()
    times = page.get_by_role("combobox", name="Replay in from")
    expect(times).to_be_focused()
    times.select_option(index=times.locator("option").count() - 1)
    dialog.get_by_role("button", name="Replay").click()
    expect(positions).to_contain_text("the beginning")


def test_a_bad_edit_is_shown_where_it_is_while_the_pipeline_goes_on(open_page: "OpenPage", site: "Site") -> None:
    site.write("few.py", FEW.replace("count=5", "rate=1"))
    page = open_page(f"{site.start('--watch').url}/#/pipelines/few")
    expect(page.locator(".graph-node")).to_have_count(2)
    site.write("few.py", FEW.replace("count=5", "rates=1"))

    shown = page.get_by_role("region", name="Problem with the definition")
    expect(shown).to_contain_text("goes on as it was")
    expect(shown).to_contain_text("few.py:")
    expect(shown).to_contain_text("Suggestion")
    assert site.status("few") == "running"


def test_the_focus_stays_with_the_commands_when_one_of_them_goes(open_page: "OpenPage", site: "Site") -> None:
    site.write("few.py", FEW.replace("count=5", "rate=1"))
    page = open_page(f"{site.start().url}/#/pipelines/few")
    page.get_by_role("button", name="Stop", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.get_by_role("button", name="Start")).to_be_focused()


def test_a_pipeline_that_is_not_there_is_said_not_to_be(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(f"{shop.url}/#/pipelines/nobody")

    expect(page.get_by_role("heading", name="There is no pipeline nobody")).to_be_visible()
    page.get_by_role("link", name="All pipelines").click()
    expect(page.locator("[data-row=flowing]")).to_be_visible()


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: "OpenPage", shop: "Site") -> None:
    page = open_page(shop.url, width=390, height=844)
    expect(page.locator("[data-row=flowing]")).to_be_visible()
    fits(page)
    page.locator("[data-roving=flowing]").click()
    expect(page.locator(".graph-node")).to_have_count(3)
    fits(page)
    page.locator("[data-node=cents]").click()
    expect(page.get_by_role("complementary")).to_be_visible()
    fits(page)
    page.goto(f"{shop.url}/#/dead-letters")
    expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()
    fits(page)


def fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


AGAIN = '''
"""Fails three times in one way, and then no more."""
from conduit_connectors import generator
from conduit_py import Destination, Pipeline, Recovery, Source, TransientError
from conduit_py.sdk import DestinationConnector as Sink, Options

tries = []

class Lake(Sink[Options]):
    """Away at first."""
    async def write(self, batch):
        tries.append(1)
        if len(tries) <= 3:
            raise TransientError("the lake is away")

again = Pipeline("again", sources=[Source("in", generator.Source(rate=20, fields={"id": "index"}))],
    destinations=[Destination("lake", Lake())], recovery=Recovery(delay_seconds=0.1, delay_max_seconds=0.1))
'''

SECRETIVE = """
version: 2.2
pipelines:
  - id: secretive
    status: running
    connectors:
      - {id: made, type: source, plugin: generator,
         settings: {rate: "file:../rate", format.type: raw, format.options.x: int}}
      - {id: kept, type: destination, plugin: log}
"""

FEW = '''
"""Five records, and that is all."""
from conduit_connectors import generator, memory
from conduit_py import Destination, Pipeline, Source

few = Pipeline("few", sources=[Source("in", generator.Source(count=5, fields={"id": "index"}))],
    destinations=[Destination("out", memory.Destination(into=[]))])
'''

"""The page for those who do not see it, or have no mouse: names, landmarks, order, contrast, motion."""

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

PLACES = {
    "fleet": ("#/", "[data-row=flowing]"),
    "pipeline": ("#/pipelines/flowing", ".graph-node"),
    "node": ("#/pipelines/flowing/nodes/cents", ".panel"),
    "error": ("#/pipelines/broken", ".error"),
    "positions": ("#/pipelines/flowing/positions", ".positions li"),
    "letters": ("#/dead-letters", ".empty"),
    "lost": ("#/nowhere", ".empty"),
}
FINDINGS = """
() => {
  const found = [];
  const visible = (element) => element.checkVisibility();
  const say = (what, element) => found.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  const named = (element) => (element.getAttribute("aria-label") || element.labels?.[0]?.textContent
    || element.textContent || element.title || "").trim();
  for (const each of document.querySelectorAll("button, a, input, select, textarea, [role=img], nav, aside, dialog"))
    if (visible(each) && !named(each) && !each.getAttribute("aria-labelledby")) say("has no name", each);
  for (const each of document.querySelectorAll("img, svg"))
    if (!each.closest("[aria-hidden=true], [role=img]")) say("drawing is neither hidden nor named", each);
  for (const each of document.querySelectorAll("[tabindex]")) if (each.tabIndex > 0) say("is put before others", each);
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id twice: ${id}`);
  for (const attribute of ["aria-labelledby", "aria-describedby"])
    for (const each of document.querySelectorAll(`[${attribute}]`))
      if (!document.getElementById(each.getAttribute(attribute))) say("refers to nothing", each);
  for (const [selector, count] of [["main", 1], ["h1", 1], ["header.top-bar", 1]])
    if (document.querySelectorAll(selector).length !== count) found.push(`${selector} is not there once`);
  for (const each of document.querySelectorAll("[role=row]"))
    if (!each.closest("[role=table]")) say("row outside of a table", each);
  let last = 0;
  for (const each of document.querySelectorAll("h1, h2, h3, h4")) {
    const level = Number(each.tagName[1]);
    if (level > last + 1) say(`heading after level ${last}`, each);
    last = level;
  }
  if (!document.documentElement.lang) found.push("no language");
  if (!document.title) found.push("no title");
  return found;
}
"""
CONTRASTS = """
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const pixel = (layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (layers) => {
    const [r, g, b] = [...pixel(layers)].slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.unshift(getComputedStyle(each).backgroundColor);
    return layers;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(".unseen, svg, :disabled, .skip")) continue;
    const ground = behind(element);
    const [a, b] = [light(ground), light([...ground, getComputedStyle(element).color])];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}: ${element.className} ${element.textContent.trim().slice(0, 40)}`);
  }
  return found;
}
"""


def opened(open_page: "OpenPage", shop: "Site", place: str, **how: Any) -> Page:
    address, ready = PLACES[place]
    page = open_page(f"{shop.url}/{address}", **how)
    expect(page.locator(ready).first).to_be_visible()
    return page


@pytest.mark.parametrize("place", PLACES)
def test_everything_has_a_name_and_a_place_and_can_be_read_in_light_and_dark(
    open_page: "OpenPage", shop: "Site", place: str
) -> None:
    page = opened(open_page, shop, place)
    assert page.evaluate(FINDINGS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRASTS) == [], scheme


def test_the_first_key_skips_to_the_content_and_every_focus_can_be_seen(open_page: "OpenPage", shop: "Site") -> None:
    page = opened(open_page, shop, "fleet")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", page.evaluate("document.activeElement.outerHTML")


def test_the_shortcuts_are_listed_and_lead_where_they_say(open_page: "OpenPage", shop: "Site") -> None:
    page = opened(open_page, shop, "fleet")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("go to the dead letters")
    assert page.evaluate(FINDINGS) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)

    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Dead letters", exact=True)).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.locator("[data-row=flowing]")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("g d ?")
    expect(page.get_by_role("searchbox")).to_have_value("g d ?")


def test_nothing_moves_for_those_who_want_no_motion(open_page: "OpenPage", shop: "Site") -> None:
    page = opened(open_page, shop, "pipeline")
    page.emulate_media(reduced_motion="reduce")
    expect(page.locator(".edge-flow").first).to_be_attached()

    assert page.evaluate("document.getAnimations().length") == 0

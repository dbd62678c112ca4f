"""Dead letters on the page: counted, read, mended, sent again, thrown away."""

import json
from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.page.conftest import OpenPage, Site

PICKY = '''
"""A pipeline that refuses every tenth order, until its amount is one that it likes."""
from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Source, processor

@processor
def picky(record):
    if record.payload["amount"] < 0:
        raise ValueError(f"the amount {record.payload['amount']} is below 0")
    return record

orders = Pipeline("orders", sources=[Source("shop", file.Source(path="orders.jsonl", format="json", tail=True))],
    processors=[picky], destinations=[Destination("lake", file.Destination(path="lake.jsonl", format="json"))],
    dead_letters=DeadLetters("journal"))
'''
BIG = 2**60 + 1


def test_a_letter_is_found_mended_and_sent_again_and_the_others_discarded(open_page: "OpenPage", site: "Site") -> None:
    orders = [{"id": BIG + n, "amount": -n if n % 10 == 5 else n} for n in range(30)]
    (site.folder / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders))
    site.write("picky.py", PICKY)
    page = open_page(f"{site.start().url}/#/dead-letters")

    rows = page.locator(".letter-row[data-row]")
    expect(rows).to_have_count(3)
    expect(page.locator(".causes li")).to_contain_text("3")
    page.keyboard.press("/")
    page.keyboard.type("amount -15")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="the amount -15 is below 0").click()

    expect(page.get_by_role("heading", name="Dead letter")).to_be_visible()
    expect(page.locator(".error-message")).to_have_text("ValueError: the amount -15 is below 0")
    mend(page, '"amount": -15', '"amount": 15')
    expect(page.locator("[data-change=changed]")).to_contain_text("payload.after.amount")

    page.get_by_role("button", name="Replay…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay 1 dead letter?")
    expect(dialog).to_contain_text("1 to orders · picky")
    dialog.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("heading", name="This dead letter is gone")).to_be_visible()
    delivered = [json.loads(line) for line in (site.folder / "lake.jsonl").read_text().splitlines()]
    assert {"id": BIG + 15, "amount": 15} in delivered

    page.get_by_role("link", name="All dead letters").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Discard all…").click()
    expect(dialog).to_contain_text("Discard 2 dead letters?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()


def mend(page: Page, wrong: str, right: str) -> None:
    """Edit the record, first into something that is no JSON, which is said and not sent."""
    page.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="The record as JSON")
    text = editor.input_value()
    assert str(BIG + 15) in text
    editor.fill(text + "}")
    page.get_by_role("button", name="Save record").click()
    expect(page.locator("#record-problem")).to_contain_text("This is not JSON")
    editor.fill(text.replace(wrong, right))
    page.get_by_role("button", name="Save record").click()


def test_some_are_chosen_with_the_keyboard(open_page: "OpenPage", site: "Site") -> None:
    lines = [json.dumps({"id": n, "amount": -n}) + "\n" for n in range(1, 5)]
    (site.folder / "orders.jsonl").write_text("".join(lines))
    site.write("picky.py", PICKY)
    page = open_page(f"{site.start().url}/#/pipelines/orders/dead-letters")

    rows = page.locator(".letter-row[data-row]")
    expect(rows).to_have_count(4)
    rows.nth(0).get_by_role("link").focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator(".toolbar-note")).to_have_text("2 selected")
    page.get_by_role("button", name="Discard 2…").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(rows).to_have_count(2)

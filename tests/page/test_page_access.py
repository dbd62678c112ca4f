"""Who may see what: the page asks for a token, keeps it in its tab, and never shows a secret."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.page.conftest import NewSite, OpenPage, Site

READER, OPERATOR = "reader-" + "r" * 24, "operator-" + "o" * 24
SECRET = "hunter2-hunter2-hunter2"
LEAKY = """
version: 2.2
pipelines:
  - id: leaky
    status: running
    description: has a secret that it would like to tell
    connectors:
      - id: in
        type: source
        plugin: generator
        settings:
          rate: "20"
          format.type: structured
          format.options.id: int
        processors:
          - id: tell
            plugin: field.set
            settings:
              field: .Payload.After.told
              value: ${PASSWORD}
      - id: out
        type: destination
        plugin: log
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, new_site: "NewSite") -> Iterator["Site"]:
    """A server that wants tokens, and has a secret."""
    with new_site(tmp_path_factory.mktemp("guarded")) as site:
        site.write("leaky.yaml", LEAKY)
        tokens = site.folder / "tokens"
        tokens.write_text(f"read {READER}\noperate {OPERATOR}\n")
        tokens.chmod(0o600)
        yield site.start("--token-file", "tokens", PASSWORD=SECRET)


def test_a_token_is_asked_for_refused_taken_and_forgotten(open_page: "OpenPage", guarded: "Site") -> None:
    page = open_page(guarded.url)
    dialog = page.get_by_role("dialog", name="This server asks for a token")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    assert "leaky" not in page.content()

    sign_in(page, "x" * 30)
    expect(dialog.get_by_role("alert")).to_have_text("The server refused that token.")
    sign_in(page, READER)
    expect(page.locator("[data-row=leaky]")).to_be_visible()
    expect(dialog).to_have_count(0)

    assert page.evaluate("JSON.stringify(localStorage)").count(READER) == 0
    assert page.context.cookies() == []
    page.reload()
    expect(page.locator("[data-row=leaky]")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(dialog).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


WHY = "This needs a token with the role operate; yours has the role read."


def test_what_a_role_may_not_do_is_off_and_says_why(open_page: "OpenPage", guarded: "Site") -> None:
    page = open_page(guarded.url)
    sign_in(page, READER)
    stop = page.get_by_role("button", name="Stop leaky")
    expect(stop).to_be_disabled()
    expect(stop).to_have_accessible_description(WHY)
    expect(stop).to_have_attribute("title", WHY)
    # Also by keyboard: it takes the focus, or nobody who cannot see it would learn why.
    stop.focus()
    page.keyboard.press("Enter")
    notices = page.get_by_role("region", name="Notices")
    expect(notices).to_contain_text(WHY)
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.goto(f"{guarded.url}/#/pipelines/leaky/nodes/in:tell")
    for name in ("Stop", "Restart", "Force stop", "Tap"):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_accessible_description(WHY)
    for key in ("s", "r", "t"):
        for notice in page.locator(".notice button").all():
            notice.click()
        page.keyboard.press(key)
        expect(notices).to_contain_text(WHY)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop tap")).to_have_count(0)
    page.goto(f"{guarded.url}/#/pipelines/leaky/positions")
    expect(page.get_by_role("button", name="Reset…")).to_be_disabled()
    page.goto(f"{guarded.url}/#/dead-letters")
    expect(page.get_by_role("button", name="Discard all…")).to_be_disabled()


def test_the_server_refuses_what_the_page_does_not_keep_anybody_from(guarded: "Site") -> None:
    answers = [
        guarded.http.post(f"/api/v1/pipelines/leaky/{what}", headers={"authorization": f"Bearer {READER}"})
        for what in ("stop", "restart")
    ]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert answers[0].json()["error"]["message"] == "this needs a token with the role operate"


def test_another_token_has_another_role(open_page: "OpenPage", guarded: "Site") -> None:
    page = open_page(guarded.url)
    sign_in(page, READER)
    expect(page.get_by_role("button", name="Stop leaky")).to_be_disabled()
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, OPERATOR)

    expect(page.get_by_role("button", name="Stop leaky")).to_be_enabled()
    expect(page.get_by_role("button", name="Stop leaky")).not_to_have_attribute("title", WHY)


def test_a_secret_is_nowhere_on_the_page_not_even_in_a_record(open_page: "OpenPage", guarded: "Site") -> None:
    page = open_page(f"{guarded.url}/#/pipelines/leaky/nodes/in:tell")
    sign_in(page, OPERATOR)
    page.get_by_role("button", name="Tap").click()

    expect(page.locator(".record-sample [data-change=added]").first).to_contain_text("payload.after.told")
    assert SECRET not in page.content()


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.keyboard.press("Enter")

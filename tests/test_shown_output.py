"""The tutorial and the recipes can be followed from top to bottom, and every command prints what the page shows."""

from pathlib import Path

import pytest
from shown_output import FollowedPage, all_pages, commands_of, masked

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """`python tests/support/shown_output.py` writes what they print."""
    followed = FollowedPage(page, tmp_path)
    followed.follow()

    wrong = [command for command in followed.commands if not command.is_true()]
    assert [(each.line, each.printed) for each in wrong] == [(each.line, each.expected) for each in wrong]


def test_what_a_page_shows_is_read_as_commands_and_their_output() -> None:
    text = "$ cat <<'END'\n> a\n> END\na\n$ true\n$ echo b\nb\nc\n"

    assert [(each.line, each.expected) for each in commands_of(text)] == [
        ("cat <<'END'\na\nEND", "a\n"),
        ("true", ""),
        ("echo b", "b\nc\n"),
    ]


def test_only_what_differs_from_run_to_run_is_masked() -> None:
    shown = "shop: completed: 4 read, 1 dead letter in 0.2 s (21/s)"

    assert masked(shown) == masked("shop: completed: 4 read, 1 dead letter in 1.7 s (2/s)")
    assert masked(shown) != masked("shop: completed: 5 read, 1 dead letter in 0.2 s (21/s)")
    assert masked("LETTER nkx3vttqxwlbrmzq 1s ago 7") == masked("LETTER  4wqkzbpslxpovbgh  12s ago 7")
    assert masked("at 2026-11-16 09:12:44 on http://127.0.0.1:41873") == "at TIME on http://HOST"

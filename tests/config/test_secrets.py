"""Secrets: known by value, wherever and however a text quotes them."""

import base64
import json
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.config.secrets import SECRETS, Secrets, redact


def known(*values: str) -> Secrets:
    secrets = Secrets()
    for value in values:
        secrets.add(value)
    return secrets


def test_a_secret_is_masked_wherever_it_stands() -> None:
    secrets = known("s3cr3t")

    assert secrets.redact("user:s3cr3t@host, s3cr3t!") == "user:***@host, ***!"
    assert secrets.redact("nothing here") == "nothing here"


def test_without_secrets_a_text_stays_as_it_is() -> None:
    assert Secrets().redact("anything") == "anything"


def test_the_longest_secret_is_masked_as_a_whole() -> None:
    assert known("abcd", "abcdefgh").redact("abcdefgh abcd") == "*** ***"
    assert known("abcdefgh", "abcd").redact("abcdefgh abcd") == "*** ***"


@pytest.mark.parametrize(
    "quoted",
    [
        json.dumps('pä"ss wörd/\n+'),
        json.dumps('pä"ss wörd/\n+', ensure_ascii=False),
        repr('pä"ss wörd/\n+'),
        quote_plus('pä"ss wörd/\n+'),
        base64.b64encode('pä"ss wörd/\n+'.encode()).decode(),
    ],
)
def test_a_secret_is_known_in_other_clothes(quoted: str) -> None:
    masked = known('pä"ss wörd/\n+').redact(f"value={quoted}")

    assert masked.replace('"', "").replace("'", "") == "value=***"


def test_longer_lines_of_a_secret_are_known_alone() -> None:
    secrets = known("-----BEGIN KEY-----\nMIIEvQIBADANBg\nab==\n-----END KEY-----")

    assert secrets.redact("line 2 is MIIEvQIBADANBg, then ab==") == "line 2 is ***, then ab=="


@pytest.mark.parametrize("value", ["", "abc", "true", "False", "   "])
def test_what_is_too_short_or_too_plain_is_not_masked(value: str) -> None:
    assert known(value).redact(f"a {value} b") == f"a {value} b"


def test_a_secret_with_blanks_around_it_is_known_without_them() -> None:
    assert known("  s3cr3t\n").redact("is s3cr3t") == "is ***"


def test_the_process_has_secrets_of_its_own() -> None:
    SECRETS.add("known-to-the-process-8472")

    assert redact("a known-to-the-process-8472 b") == "a *** b"


# A secret of asterisks could be seen in its own mask.
@given(secret=st.text(st.characters(exclude_characters="*"), min_size=4), before=st.text(), after=st.text())
def test_no_secret_survives_in_any_text(secret: str, before: str, after: str) -> None:
    masked = known(secret).redact(before + secret + after)

    if len(secret.strip()) >= 4 and secret.strip().lower() not in ("true", "false", "none", "null"):
        assert secret not in masked

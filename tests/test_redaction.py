"""Secrets: known by value, wherever and however a text quotes them."""

import base64
import json
import time
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from conduit_py.redaction import SECRETS, Secrets, redact
from conduit_py.sdk import Options
from conduit_py.sdk.secrets import learn_from_invalid, secrets_in


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


class Catalog(Options):
    """Options of which any property may be a secret."""

    catalog: dict[str, SecretStr]


def test_the_kind_and_the_name_of_a_catalog_are_not_masked() -> None:
    """The log would say "***art" in place of "restart"."""
    options = Catalog(catalog={"type": SecretStr("rest"), "name": SecretStr("default"), "token": SecretStr("hush")})

    assert list(secrets_in(options)) == ["hush"]


def test_a_password_in_the_name_of_a_catalog_is_masked_nevertheless() -> None:
    address = "postgresql://me:s3cret@here/db"

    assert "s3cret" in list(secrets_in(Catalog(catalog={"name": SecretStr(address)})))
    assert "s3cret" in list(secrets_in({"name": address}))


def test_the_kind_of_a_catalog_is_not_masked_if_its_options_are_not_valid() -> None:
    learn_from_invalid(Catalog, {"catalog": {"type": "zzzrest", "token": "zzzhush"}, "no_option": 1})

    assert redact("zzzrestart, zzzhush") == "zzzrestart, ***"


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


@pytest.mark.parametrize(
    ("url", "quoted"),
    [
        ("postgresql://app:p%40ss%2Fword@db.example/orders", 'FATAL: no pg_hba entry for "p@ss/word"'),
        ("postgresql://app:p%40ss%2Fword@db.example/orders", "cannot parse p%40ss%2Fword"),
        ("postgresql://app:p4ss@W0rd@db.example/orders", 'could not translate host name "w0rd@db.example"'),
        ("postgresql://app:pa/ssword9@db.example/orders", "invalid port: ssword9"),
        ("redis://:hunter2hunter2@cache:6379/0?timeout=5", "AUTH hunter2hunter2 failed"),
        ("jdbc:postgresql://db/orders?user=app&password=Geheim123&ssl=true", 'login with "Geheim123" failed'),
        ("sc://spark.example:443/;use_ssl=true;token=eyJhbGciOi.xyz;user_id=me", "bad token eyJhbGciOi.xyz"),
        ("https://ghp_0123456789abcdefghij@git.example/x.git", "401 for ghp_0123456789abcdefghij"),
        ("host=db user=app password='two words' dbname=x", "password 'two words' is wrong"),
    ],
)
def test_a_part_of_an_address_is_known_alone(url: str, quoted: str) -> None:
    assert "***" in known(url).redact(quoted)


def test_host_user_port_and_database_of_an_address_are_no_secrets() -> None:
    secrets = known("postgresql://orders_app:s3cr3t99@db.example:5432/orders?mail=a@b.example")

    assert secrets.redact("orders_app at db.example:5432, orders") == "orders_app at db.example:5432, orders"
    assert known("http://db.example:5432/x?mail=someone@b.example").redact("port 5432, someone") == "port 5432, someone"


def test_secrets_that_overlap_are_masked_with_all_they_cover() -> None:
    assert known("abcdefgh", "efghijkl").redact("-abcdefghijkl-") == "-***-"


def test_a_secret_inside_something_longer_in_base64_is_known() -> None:
    for user in ("a", "bc", "def"):
        header = base64.b64encode(f"{user}:correct-horse-battery:x".encode()).decode()

        assert "***" in known("correct-horse-battery").redact(f"Authorization: Basic {header}")


def test_a_long_secret_is_known_by_its_pieces() -> None:
    key = "".join(f"{number:x}" for number in range(4000))
    masked = known(key).redact(f"the key {key[:900]} is wrong")

    assert masked.startswith("the key ***")
    assert not any(key[start : start + 64] in masked for start in range(900))


def test_the_time_for_a_text_does_not_grow_with_the_secrets() -> None:
    text = "could not write the row: value too long for type character varying(20) " * 100

    def seconds(lines: int) -> float:
        secrets = known("\n".join(f"{number:064x}" for number in range(1, lines + 1)))
        secrets.redact(text)
        return min(_cpu_seconds(secrets, text) for _ in range(5))

    assert seconds(200) < 20 * seconds(1)


def _cpu_seconds(secrets: Secrets, text: str) -> float:
    before = time.thread_time()
    for _ in range(20):
        secrets.redact(text)
    return time.thread_time() - before

"""Interpolator to the environment and to files: what they become, and what is said when they cannot be resolved."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.config.interpolation import InterpolationProblem, Interpolator
from conduit_py.redaction import Secrets
from conduit_py.sdk.secrets import SIZE_MAX

ENVIRONMENT = {"USER_NAME": "admin", "EMPTY": "", "PASSWORD": "pa$$word ${USER_NAME}"}


def interpolator(folder: Path = Path("/nowhere"), secrets: Secrets | None = None) -> Interpolator:
    return Interpolator(folder, environment=ENVIRONMENT, secrets=secrets or Secrets())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${USER_NAME}", "admin"),
        ("a${USER_NAME}b${USER_NAME}c", "aadminbadminc"),
        ("${EMPTY}", ""),
        ("${NOT_SET:-fallback}", "fallback"),
        ("${EMPTY:-fallback}", "fallback"),
        ("${USER_NAME:-fallback}", "admin"),
        ("${NOT_SET:-}", ""),
        ("${NOT_SET:-a:-b}", "a:-b"),
        ("${NOT_SET:-${USER_NAME}!}", "admin!"),
        ("${NOT_SET:-${ALSO_NOT:-deep}}", "deep"),
        ("$$", "$"),
        ("$${USER_NAME}", "${USER_NAME}"),
        ("^a+$", "^a+$"),
        ("5$ and 6$!", "5$ and 6$!"),
        ("$NAME", "$NAME"),
        # What a variable holds is taken as it is: no second round of replacing.
        ("${PASSWORD}", "pa$$word ${USER_NAME}"),
    ],
)
def test_a_text_has_its_references_replaced(text: str, expected: str) -> None:
    resolved = interpolator().resolve_setting(text)

    assert (resolved.text, resolved.problems) == (expected, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "postgres://${NOT_SET}@host",
            InterpolationProblem(
                "the environment variable NOT_SET is not set", "set it, or give a default: ${NOT_SET:-…}"
            ),
        ),
        ("${", InterpolationProblem("a ${ has no }", "write $$ for a dollar itself")),
        (
            "${USER_NAME:?no}",
            InterpolationProblem(
                "${USER_NAME:?no} is not a reference to an environment variable",
                "write ${NAME} or ${NAME:-default}, and $$ for a dollar itself",
            ),
        ),
        (
            "${}",
            InterpolationProblem(
                "${} is not a reference to an environment variable",
                "write ${NAME} or ${NAME:-default}, and $$ for a dollar itself",
            ),
        ),
        ("${A:-" * 20 + "}" * 20, InterpolationProblem("defaults are nested too deeply", None)),
        (
            "env:NOT_SET",
            InterpolationProblem("the environment variable NOT_SET is not set", "set it, or write ${NOT_SET:-default}"),
        ),
        (
            "env:EMPTY",
            InterpolationProblem("the environment variable EMPTY is empty", "set it, or write ${EMPTY:-default}"),
        ),
        (
            "env:a b",
            InterpolationProblem(
                "env:a b does not name an environment variable", "write env:NAME, of letters, digits and _"
            ),
        ),
        (
            "file:secret",
            InterpolationProblem(
                "file:secret is not a path to a secret", "write file:/path, or file:./secret for a file beside this one"
            ),
        ),
        (
            "file:/no/such/file",
            InterpolationProblem("the secret in /no/such/file cannot be read: No such file or directory"),
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_problem_and_never_an_empty_text(
    text: str, problem: InterpolationProblem
) -> None:
    assert interpolator().resolve_setting(text).problems == [problem]


def test_all_problems_of_a_text_are_found() -> None:
    problems = interpolator().resolve("${ONE}/${TWO}").problems

    assert [problem.message for problem in problems] == [
        "the environment variable ONE is not set",
        "the environment variable TWO is not set",
    ]


def test_a_bare_dollar_name_stays_and_is_reported() -> None:
    resolved = interpolator().resolve("$HOME/$$KEPT/${USER_NAME}$X")

    assert (resolved.text, resolved.bare) == ("$HOME/$KEPT/admin$X", ["HOME", "X"])


def test_a_whole_value_may_be_a_variable_or_the_content_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("top secret\n")
    (tmp_path / "key.pem").write_bytes(b"-----BEGIN-----\r\nabc\r\n")
    with_folder = interpolator(tmp_path)

    assert with_folder.resolve_setting("env:USER_NAME").text == "admin"
    assert with_folder.resolve_setting(f"file:{tmp_path}/token").text == "top secret"
    assert with_folder.resolve_setting("file:./token").text == "top secret"
    assert with_folder.resolve_setting("file:./key.pem").text == "-----BEGIN-----\r\nabc"


@pytest.mark.parametrize("text", ["file:///etc/hosts", "an env:USER_NAME inside", "${NOT_SET:-env:USER_NAME}"])
def test_what_only_looks_like_a_whole_reference_is_text(text: str) -> None:
    resolved = interpolator().resolve_setting(text)

    assert resolved.text == text.removeprefix("${NOT_SET:-").removesuffix("}")
    assert not resolved.secret


def test_in_texts_that_are_no_settings_only_dollars_mean_something() -> None:
    secrets = Secrets()
    resolved = interpolator(secrets=secrets).resolve("env:USER_NAME ${USER_NAME}")

    assert (resolved.text, resolved.secret) == ("env:USER_NAME admin", False)
    assert secrets.redact("admin") == "admin"


def test_secret_files_must_be_text_of_a_reasonable_size(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_bytes(b"x" * (SIZE_MAX + 1))

    for name, message in (
        ("binary", "is not UTF-8 text"),
        ("empty", "is empty"),
        ("large", f"is larger than {SIZE_MAX} bytes"),
    ):
        resolved = interpolator(tmp_path).resolve_setting(f"file:./{name}")
        assert resolved.problems == [InterpolationProblem(f"the secret in {tmp_path / name} {message}")]


def test_values_are_remembered_as_secrets_and_defaults_are_not(tmp_path: Path) -> None:
    secrets = Secrets()
    (tmp_path / "token").write_text("from-a-file")
    with_folder = interpolator(tmp_path, secrets)
    first = with_folder.resolve_setting("${USER_NAME}:${NOT_SET:-visible}")
    second = with_folder.resolve_setting("file:./token")

    assert (first.secret, second.secret) == (True, True)
    assert secrets.redact("admin visible from-a-file") == "*** visible ***"


def test_the_environment_is_that_of_the_process_unless_another_is_given() -> None:
    assert Interpolator(Path()).resolve("${PATH}").text == os.environ["PATH"]


@given(st.text(st.sampled_from("${}:-aA_ envfile/.\\$")))
def test_any_text_resolves_or_has_problems(text: str) -> None:
    resolved = interpolator().resolve_setting(text)

    assert "$" in text or text.startswith(("env:", "file:")) or (resolved.text, resolved.problems) == (text, [])

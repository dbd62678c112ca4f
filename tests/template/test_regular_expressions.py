"""regexMatch takes time in proportion to the text, whatever a record holds."""

import pytest

from conduit_py.record import Record
from conduit_py.sdk.template import TemplateCondition, TemplateInvalid


def matches(pattern: str, text: str) -> bool:
    return TemplateCondition(f"{{{{ regexMatch `{pattern}` .Payload.After.text }}}}")(Record.of({"text": text}))


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+$", r"(.*a){20}b", r"^(\w+\s?)*$"])
def test_no_text_takes_exponential_time(pattern: str) -> None:
    assert not matches(pattern, "a" * 50_000 + "!")
    assert matches(r"a+!$", "a" * 50_000 + "!")


def test_syntax_is_that_of_go() -> None:
    assert matches(r"(?i)^straße \d+$", "STRAßE 12")
    assert matches(r"^\p{L}+\z", "été")
    assert not matches(r"^\w+$", "été")
    assert not matches(r"a$", "a\n")
    assert matches(r"^a.b$", "aéb")


def test_half_of_a_surrogate_pair_is_a_character() -> None:
    assert matches(r"^a.b$", "a\ud800b")


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?<!a)b", r"(a)\1", "(?P<x>a)(?P=x)", "(?>a)", "a*+", r"a\Z"])
def test_what_linear_time_cannot_do_is_a_problem_of_the_definition(pattern: str) -> None:
    with pytest.raises(TemplateInvalid) as invalid:
        matches(pattern, "ab")

    assert invalid.value.message.startswith("regexMatch: ")
    assert invalid.value.suggestion == (
        "use the syntax of Go and RE2: it has no look-around, no backreferences and no possessive repeats"
    )


def test_a_pattern_that_takes_much_memory_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TemplateInvalid, match="invalid repetition size"):
        matches(r"((a{100}){100}){100}", "")

    assert capfd.readouterr().err == ""

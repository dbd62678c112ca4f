"""CheckResult: what one check found, and the command or change that mends it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """`ok` is fine, `warn` may hurt later or only some, `fail` keeps something from running."""

    check: str
    verdict: Verdict
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> CheckResult:
    return CheckResult(check, "ok", message)


def warn(check: str, message: str, fix: str | None = None) -> CheckResult:
    return CheckResult(check, "warn", message, fix)


def fail(check: str, message: str, fix: str | None = None) -> CheckResult:
    return CheckResult(check, "fail", message, fix)

"""Interpolation of values: `${X}`, `${X:-default}`, `$$`, and a reference to a secret as a whole value."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from conduit_py.redaction import SECRETS, Secrets
from conduit_py.sdk.secrets import VARIABLE, SecretReader, SecretReading, SecretUnavailable

DEFAULTS_DEPTH_MAX: Final = 10


class InterpolationProblem(NamedTuple):
    """Why a reference cannot be resolved, and what to do about it."""

    message: str
    suggestion: str | None = None


@dataclass
class Resolved:
    """A text with its references replaced.

    A `secret` text must not be quoted; one with `problems` must not be used. `bare` has the names
    written as `$NAME`, which Conduit replaces and we do not.
    """

    text: str = ""
    secret: bool = False
    problems: list[InterpolationProblem] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)


class Interpolator:
    """Replaces references by their values when a pipeline is loaded, and remembers the values as secrets.

    An environment variable that is not set is a problem, never an empty text; one that is set to an
    empty text takes the default, if there is one. A dollar that begins no reference stays as it is.
    """

    def __init__(
        self, folder: Path, *, environment: Mapping[str, str] | None = None, secrets: Secrets = SECRETS
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._secrets = secrets
        # A YAML file is data to many who check one, so it runs no command unless the operator says so.
        self._reader = SecretReader(folder, environment=self._environment, secrets=secrets, allow_exec=False)

    @property
    def readings(self) -> Collection[SecretReading]:
        """The secrets that were read from files and from other systems."""
        return self._reader.readings.values()

    def resolve(self, text: str) -> Resolved:
        """Replace the references in a text that may be shown, such as an id."""
        return self._expand(text)

    def resolve_setting(self, text: str) -> Resolved:
        """Replace the references in a setting, which may be one to a secret as a whole, and keep it secret."""
        if not self._reader.refers(text):
            return self._expand(text, self._secrets)
        try:
            return Resolved(self._reader.read(text), secret=True)
        except SecretUnavailable as error:
            hint, name = error.suggestion, text.removeprefix("env:")
            if name != text and VARIABLE.fullmatch(name):
                hint = f"set it, or write ${{{name}:-default}}"
            return Resolved(problems=[InterpolationProblem(error.message, hint)])

    def _expand(self, text: str, secrets: Secrets | None = None) -> Resolved:
        expansion = _Expansion(self._environment, secrets)
        expansion.resolved.text = expansion.expand(text)
        return expansion.resolved


class _Expansion:
    """Replaces the references in one text; with `secrets`, their values are remembered."""

    def __init__(self, environment: Mapping[str, str], secrets: Secrets | None) -> None:
        self.resolved = Resolved()
        self._environment = environment
        self._secrets = secrets

    def expand(self, text: str, depth: int = 0) -> str:
        parts: list[str] = []
        at = 0
        while (dollar := text.find("$", at)) >= 0:
            parts.append(text[at:dollar])
            value, at = self._after(text, dollar, depth)
            parts.append(value)
        return "".join([*parts, text[at:]])

    def _after(self, text: str, dollar: int, depth: int) -> tuple[str, int]:
        """The value of what begins with the dollar, and where the text continues."""
        if text.startswith("$$", dollar):
            return "$", dollar + 2
        if not text.startswith("${", dollar):
            if name := VARIABLE.match(text, dollar + 1):
                self.resolved.bare.append(name[0])
            return "$", dollar + 1
        end = _closing_brace(text, dollar + 2)
        if end is None:
            self._problem("a ${ has no }", "write $$ for a dollar itself")
            return "", len(text)
        return self._variable(text[dollar + 2 : end], depth), end + 1

    def _variable(self, inside: str, depth: int) -> str:
        name = VARIABLE.match(inside)
        rest = inside[name.end() :] if name else inside
        if name is None or (rest and not rest.startswith(":-")):
            hint = "write ${NAME} or ${NAME:-default}, and $$ for a dollar itself"
            return self._problem(f"${{{inside[:40]}}} is not a reference to an environment variable", hint)
        value = self._environment.get(name[0])
        if rest and not value:
            if depth == DEFAULTS_DEPTH_MAX:
                return self._problem("defaults are nested too deeply")
            return self.expand(rest[2:], depth + 1)
        if value is None:
            hint = f"set it, or give a default: ${{{name[0]}:-…}}"
            return self._problem(f"the environment variable {name[0]} is not set", hint)
        # The value itself is not expanded again: a password may contain ${.
        if self._secrets is not None:
            self.resolved.secret = True
            self._secrets.add(value)
        return value

    def _problem(self, message: str, suggestion: str | None = None) -> str:
        self.resolved.problems.append(InterpolationProblem(message, suggestion))
        return ""


_BRACES = re.compile(r"\$\{|\}")


def _closing_brace(text: str, at: int) -> int | None:
    """The index of the brace that closes the one opened before `at`; defaults may contain references with braces."""
    depth = 1
    for brace in _BRACES.finditer(text, at):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    return None

"""Interpolation of values: `${X}`, `${X:-default}`, `$$`, and `env:X` or `file:/path` as a whole value."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from conduit_py.redaction import SECRETS, Secrets

FILE_SIZE_MAX: Final = 1024 * 1024
DEFAULTS_DEPTH_MAX: Final = 10


class SecretFile(NamedTuple):
    """A file that a secret was read from, and what was in it."""

    path: Path
    digest: bytes

    def rotated(self) -> bool:
        """True if there is something else in it now, or it cannot be read."""
        try:
            return not self.path.is_file() or _digest(_read_secret(self.path)) != self.digest
        except OSError:
            return True


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
        self._folder = folder
        self._environment = os.environ if environment is None else environment
        self._secrets = secrets
        self.files: set[SecretFile] = set()
        """The files that secrets were read from."""

    def resolve(self, text: str) -> Resolved:
        """Replace the references in a text that may be shown, such as an id."""
        return self._expand(text)

    def resolve_setting(self, text: str) -> Resolved:
        """Replace the references in a setting, which may be `env:X` or `file:/path` as a whole, and keep it secret."""
        if text.startswith("env:"):
            found = self._from_environment(text.removeprefix("env:"))
        # A URL such as file:///tmp/x is an ordinary value, not a reference to a secret.
        elif text.startswith("file:") and not text.startswith("file://"):
            found = self._from_file(text.removeprefix("file:"))
        else:
            return self._expand(text, self._secrets)
        if isinstance(found, InterpolationProblem):
            return Resolved(problems=[found])
        self._secrets.add(found)
        return Resolved(found, secret=True)

    def _expand(self, text: str, secrets: Secrets | None = None) -> Resolved:
        expansion = _Expansion(self._environment, secrets)
        expansion.resolved.text = expansion.expand(text)
        return expansion.resolved

    def _from_environment(self, name: str) -> str | InterpolationProblem:
        if not _NAME.fullmatch(name):
            return InterpolationProblem(
                f"env:{name} does not name an environment variable", "write env:NAME, of letters, digits and _"
            )
        value = self._environment.get(name)
        # Empty counts as missing: an empty password is nearly always a mistake of the deployment.
        if not value:
            what = "not set" if value is None else "empty"
            return InterpolationProblem(
                f"the environment variable {name} is {what}", f"set it, or write ${{{name}:-default}}"
            )
        return value

    def _from_file(self, name: str) -> str | InterpolationProblem:
        if not name.startswith(("/", "./", "../")):
            hint = f"write file:/path, or file:./{name} for a file beside this one"
            return InterpolationProblem(f"file:{name} is not a path to a secret", hint)
        path = Path(name) if name.startswith("/") else self._folder / name
        try:
            content = _read_secret(path)
            # A pipe gives its content once, so nothing can be said about it later.
            if path.is_file():
                self.files.add(SecretFile(path, _digest(content)))
            # Editors and `echo` end a file with a line break that is no part of the secret.
            text = content.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            return InterpolationProblem(f"the secret in {path} cannot be read: {error.strerror}")
        except ValueError:
            return InterpolationProblem(f"the secret in {path} is not UTF-8 text")
        if len(content) > FILE_SIZE_MAX:
            return InterpolationProblem(f"the secret in {path} is larger than {FILE_SIZE_MAX} bytes")
        return text or InterpolationProblem(f"the secret in {path} is empty")


def _read_secret(path: Path) -> bytes:
    with path.open("rb") as file:
        # One byte more than allowed, to tell a file that is too large from one that just fits.
        return file.read(FILE_SIZE_MAX + 1)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


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
            if name := _NAME.match(text, dollar + 1):
                self.resolved.bare.append(name[0])
            return "$", dollar + 1
        end = _closing_brace(text, dollar + 2)
        if end is None:
            self._problem("a ${ has no }", "write $$ for a dollar itself")
            return "", len(text)
        return self._variable(text[dollar + 2 : end], depth), end + 1

    def _variable(self, inside: str, depth: int) -> str:
        name = _NAME.match(inside)
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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r"\$\{|\}")


def _closing_brace(text: str, at: int) -> int | None:
    """The index of the brace that closes the one opened before `at`; defaults may contain references with braces."""
    depth = 1
    for brace in _BRACES.finditer(text, at):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    return None

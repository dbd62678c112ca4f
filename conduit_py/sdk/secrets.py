"""Secrets by reference: `env:X`, `file:/path`, `exec:command`, and the secret managers of installed packages.

`secret("vault:…")` reads one in a pipeline file; a setting of a YAML file is such a reference as a whole.
"""

import functools
import hashlib
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from conduit_py.errors import ConduitError, describe
from conduit_py.redaction import SECRETS, Secrets, is_secret_name, redact, secrets_in_text

SIZE_MAX: Final = 1024 * 1024
EXEC_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 60.0
"""How often a secret that is not in a file is compared with what was read. Managers count and charge each request."""
ALLOW_EXEC: Final = "CONDUIT_EXEC_SECRETS"
_GROUP: Final = "conduit_py.secrets"
_OWN: Final = ("env", "file", "exec")


class SecretUnavailable(ConduitError):
    """A secret cannot be read, for the reason in the message."""

    code = "secret.unavailable"


class SecretProvider:
    """Reads the secrets of one system. A package offers its own by the entry point group `conduit_py.secrets`.

    The name of the entry point is the prefix of its references: `vault` serves `vault:…`. One object serves a process
    and may be called by several threads.
    """

    def read(self, reference: str) -> str:
        """Return the secret that the part after the prefix names, or raise SecretUnavailable with what to do."""
        raise NotImplementedError


class SecretReading:
    """A secret as it was read once: where it is, and a digest to tell that it was rotated."""

    def __init__(self, reference: str, content: bytes, reader: "SecretReader") -> None:
        self._reference = reference
        self._path = reader.path_of(reference)
        self.where = str(self._path or reference)
        self._digest = _digest(content)
        self._reader = reader
        self._looked_at = reader.clock()
        self._rotated = False
        self.missing = False
        """Whether no secret was there when it was last looked at: a file is gone, or empty while it is written."""

    def rotated(self) -> bool:
        """True if the secret is no longer what was read. May block: a file or a system is read."""
        if self._path is not None:
            content = _content_if_any(self._path)
            self.missing = not content.strip()
            return _digest(content) != self._digest
        if self._reader.clock() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self._reader.clock()
            # A manager that does not answer says nothing of the secret; the next read will fail loudly.
            with suppress(SecretUnavailable):
                self._rotated = _digest(self._reader.fetch(self._reference).encode()) != self._digest
        return self._rotated


class SecretReader:
    """Reads secrets for one pipeline file: relative paths begin in `folder`, and every value is masked from then on."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        secrets: Secrets = SECRETS,
        allow_exec: bool = True,
        manager: Callable[[str], SecretProvider] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._environment = os.environ if environment is None else environment
        self._secrets = secrets
        self._allow_exec = allow_exec
        self._manager = manager or _manager
        self.clock = clock
        self.readings: dict[str, SecretReading] = {}
        """What was read from outside of this process, by reference: it can be rotated."""

    def refers(self, text: str) -> bool:
        """Whether a text is a reference to a secret. A URL such as file:///tmp/x is an ordinary value."""
        prefix, colon, rest = text.partition(":")
        if not colon or rest.startswith("//"):
            return False
        return prefix in _OWN or prefix in _managers()

    def read(self, reference: str) -> str:
        """Return the secret and remember it as one, or raise SecretUnavailable."""
        found = self.fetch(reference)
        # Before anything can quote it.
        self._secrets.add(found)
        return found

    def fetch(self, reference: str) -> str:
        """Read the secret again."""
        prefix, _, rest = reference.partition(":")
        if prefix == "env":
            return self._from_environment(rest)
        if prefix == "file":
            return self._from_file(rest)
        value = self._from_command(rest) if prefix == "exec" else self._from_manager(prefix, rest)
        if len(value.encode()) > SIZE_MAX:
            raise SecretUnavailable(f"the secret {reference} is larger than {SIZE_MAX} bytes")
        if not value:
            raise SecretUnavailable(f"the secret {reference} is empty")
        self.readings.setdefault(reference, SecretReading(reference, value.encode(), self))
        return value

    def path_of(self, reference: str) -> Path | None:
        """The file of a `file:` reference, else None."""
        name = reference.removeprefix("file:")
        return None if name == reference else Path(name) if name.startswith("/") else self._folder / name

    def _from_environment(self, name: str) -> str:
        if not VARIABLE.fullmatch(name):
            hint = "write env:NAME, of letters, digits and _"
            raise SecretUnavailable(f"env:{name} does not name an environment variable", suggestion=hint)
        value = self._environment.get(name)
        # Empty counts as missing: an empty password is nearly always a mistake of the deployment.
        if not value:
            what = "not set" if value is None else "empty"
            raise SecretUnavailable(f"the environment variable {name} is {what}", suggestion="set it")
        return value

    def _from_file(self, name: str) -> str:
        if not name.startswith(("/", "./", "../")):
            hint = f"write file:/path, or file:./{name} for a file beside this one"
            raise SecretUnavailable(f"file:{name} is not a path to a secret", suggestion=hint)
        path = self.path_of(f"file:{name}")
        assert path is not None
        try:
            content = _read_file(path)
            # A pipe gives its content once, so nothing can be said about it later.
            if path.is_file():
                self.readings.setdefault(f"file:{name}", SecretReading(f"file:{name}", content, self))
            # Editors and `echo` end a file with a line break that is no part of the secret.
            text = content.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise SecretUnavailable(f"the secret in {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SecretUnavailable(f"the secret in {path} is not UTF-8 text") from error
        if len(content) > SIZE_MAX:
            raise SecretUnavailable(f"the secret in {path} is larger than {SIZE_MAX} bytes")
        if not text:
            raise SecretUnavailable(f"the secret in {path} is empty")
        return text

    def _from_command(self, line: str) -> str:
        if not self._allow_exec and self._environment.get(ALLOW_EXEC) != "1":
            raise SecretUnavailable(
                f"exec:{line} would run a command, and a YAML file must not do so by itself",
                suggestion=f"set {ALLOW_EXEC}=1 where conduit-py runs, if you trust every pipeline file there",
            )
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise SecretUnavailable(f"exec:{line} cannot be split into words: {error}") from error
        if not words:
            raise SecretUnavailable("exec: names no command", suggestion="write exec:/path/to/command argument …")
        try:
            # No shell: a reference is a command and its arguments, nothing else.
            quiet, seconds = subprocess.DEVNULL, EXEC_SECONDS
            ran = subprocess.run(words, cwd=self._folder, stdin=quiet, capture_output=True, timeout=seconds)
        except OSError as error:
            raise SecretUnavailable(f"{words[0]} cannot be run for a secret: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise SecretUnavailable(f"{words[0]} gave no secret within {EXEC_SECONDS:g} s") from error
        if ran.returncode != 0:
            said = redact(ran.stderr.decode(errors="replace").strip())[-300:]
            raise SecretUnavailable(f"{words[0]} gave no secret, but exit code {ran.returncode}: {said}")
        try:
            return ran.stdout.decode().removesuffix("\n").removesuffix("\r")
        except ValueError as error:
            raise SecretUnavailable(f"what {words[0]} printed is not UTF-8 text") from error

    def _from_manager(self, prefix: str, reference: str) -> str:
        if prefix not in _managers():
            known = ", ".join(sorted({*_OWN, *_managers()}))
            raise SecretUnavailable(f"there is no provider of secrets {prefix!r}", suggestion=f"there are {known}")
        provider = self._manager(prefix)
        try:
            return provider.read(reference)
        except SecretUnavailable:
            raise
        except Exception as error:  # a boundary: code of an installed package
            raise SecretUnavailable(f"the secret {prefix}:{reference} cannot be read: {describe(error)}") from error


def secret(reference: str) -> str:
    """Return a secret: `env:NAME`, `file:/path`, `exec:command`, `vault:…`, `aws:…`, `gcp:…`, or of another package.

    The value is masked in every log, error and answer of the API. Relative paths begin beside the pipeline file.
    """
    reader = _current.get()
    return (SecretReader(Path.cwd()) if reader is None else reader).read(reference)


_current: ContextVar[SecretReader | None] = ContextVar("secret_reader", default=None)


@contextmanager
def collect_secrets(folder: Path) -> Iterator[SecretReader]:
    """Let `secret` read for a pipeline file in this folder, and tell what it has read."""
    reader = SecretReader(folder)
    token = _current.set(reader)
    try:
        yield reader
    finally:
        _current.reset(token)


VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# Cached: entry points are read from the files of every installed distribution.
@functools.cache
def _managers() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}


@functools.cache
def _manager(prefix: str) -> SecretProvider:
    """The provider of a prefix. It lives as long as the process, so that it can keep a connection and a token."""
    entry = _managers()[prefix]
    try:
        provider = entry.load()()
    except ImportError as error:
        ours = entry.module.startswith("conduit_connectors.")
        hint = f"pip install 'conduit-dataflow[{prefix}-secrets]'" if ours else f"install what {entry.value} needs"
        raise SecretUnavailable(f"secrets of {prefix} cannot be read: {error}", suggestion=hint) from error
    except Exception as error:
        # A boundary: code of an installed package.
        raise SecretUnavailable(f"the provider of secrets {prefix!r} cannot be made: {describe(error)}") from error
    if not isinstance(provider, SecretProvider):
        raise SecretUnavailable(f"the provider of secrets {prefix!r}, {entry.value}, is no SecretProvider")
    return provider


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        # One byte more than allowed, to tell a file that is too large from one that just fits.
        return file.read(SIZE_MAX + 1)


def _content_if_any(path: Path) -> bytes:
    try:
        return _read_file(path) if path.is_file() else b""
    except OSError:
        return b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def learn_secrets(options: BaseModel) -> None:
    """Add every secret in the options to those of this process."""
    SECRETS.add(*secrets_in(options))


def learn_from_invalid(model: type[BaseModel], values: Mapping[str, Any]) -> None:
    """Do the same for values that are not valid options: the problems with them quote what was given."""
    for name, value in values.items():
        field = model.model_fields.get(name)
        # By its name, not its parts: the type may be nested in unions, lists and other types in many ways.
        secret = field is not None and "Secret" in repr(field.annotation)
        SECRETS.add(*(_texts_in(value) if secret else secrets_in(value)))


def secrets_in(value: Any) -> Iterator[str]:
    """The secrets in options, or in any part of them."""
    if isinstance(value, str):
        yield from secrets_in_text(value)
    elif isinstance(value, Secret | SecretStr | SecretBytes):
        yield from _texts_in(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name))
    elif isinstance(value, dict):
        for name, each in value.items():
            plain = name in _PLAIN_NAMES and isinstance(each, SecretStr)
            secret = isinstance(name, str) and isinstance(each, str) and is_secret_name(name)
            yield from (each,) if secret else secrets_in(each.get_secret_value() if plain else each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from secrets_in(each)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, Secret | SecretStr | SecretBytes):
        yield from _texts_in(value.get_secret_value())
    elif isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from secrets_in(each) if name in _PLAIN_NAMES else _texts_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts_in(each)


_PLAIN_NAMES: Final = ("type", "name")
"""Any property of a catalog may be a secret, so all are hidden whole. Of these only what is a secret in any text is:
else the "rest" of {"type": "rest"} would be hidden in "restart" too."""

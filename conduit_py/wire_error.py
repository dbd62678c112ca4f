"""The wire form of an error: how an error leaves a process, and how it becomes an error again in another.

The HTTP API and its client, `--json` of the commands, a saved status, Spark's executors and the link to a child process
all use it. No text in it can fail to be encoded or has a secret in it.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from conduit_py import errors
from conduit_py.errors import ConduitError, describe, text_of
from conduit_py.redaction import redact
from conduit_py.user_errors import RAISED_AT, code_location

INTERNAL = "internal"
"""The code of errors that are not ours: a bug, in conduit-py or in a plugin."""


class WireError(msgspec.Struct, frozen=True):
    """An error as plain values."""

    code: str
    message: str
    suggestion: str | None = None
    node: str | None = None
    path: str | None = None
    """Where in a request it is, for errors of a request."""
    family: str = errors.RunError.code
    """The code of the nearest class in `errors.py`: what to raise where the class itself is not known."""
    facts: dict[str, Any] = {}
    """The other attributes of the error that are plain values."""

    @classmethod
    def of(cls, error: BaseException) -> "WireError":
        if not isinstance(error, ConduitError):
            return cls(INTERNAL, _fit(describe(error)))
        facts = {name: value for name, value in vars(error).items() if name not in ("suggestion", "node")}
        return cls(
            error.code,
            _fit(error.message),
            error.suggestion and _fit(error.suggestion),
            getattr(error, "node", None),
            family=_family(type(error)),
            facts={
                name: redact(value) if isinstance(value, str) else value
                for name, value in facts.items()
                if isinstance(value, str | int | float | bytes | None)
            },
        )

    @classmethod
    def from_fields(cls, fields: object) -> "WireError | None":
        """The error in what a server answered; None if it is no such thing."""
        if not isinstance(fields, Mapping) or not {"code", "message"} <= fields.keys():
            return None
        suggestion, node, path = (
            str(fields[name]) if fields.get(name) else None for name in ("suggestion", "node", "path")
        )
        return cls(str(fields["code"]), str(fields["message"]), suggestion, node, path)

    def to_fields(self) -> dict[str, Any]:
        """What the API and `--json` show: `code`, `message`, `suggestion`, and `path` if there is one."""
        fields = {"code": self.code, "message": self.message, "suggestion": self.suggestion}
        return fields | ({"path": self.path} if self.path else {})

    def to_error(self) -> ConduitError:
        """The same error again: of the same class where it is known, else of its family, with the same code."""
        kinds = dict(_classes(ConduitError))
        kind = kinds.get(self.code) or kinds.get(self.family, errors.RunError)
        # Not by its constructor: those of subclasses take other arguments, from which they make the message.
        error = kind.__new__(kind)
        error.args = (self.message,)
        given = {"suggestion": self.suggestion, "node": self.node, "code": self.code}
        for name, value in (self.facts | given).items():
            if getattr(error, name, None) != value:
                setattr(error, name, value)
        return error


class ServerRefused(ConduitError):
    """The server answered with an error; `wire_error` has its code, message and suggestion."""

    code = "server.refused"

    def __init__(self, wire_error: WireError, suggestion: str | None) -> None:
        self.wire_error = wire_error
        super().__init__(f"{wire_error.message} [{wire_error.code}]", suggestion=suggestion)


class RaisedError(msgspec.Struct, frozen=True):
    """What user code raised in another process: an error of ours as above, any other by its class's name and its text.

    No class of the user is needed where it arrives, and none is made of what arrives: only the name is.
    """

    name: str
    text: str
    ours: WireError | None = None
    location: str | None = None
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException, *, trace: bool = True) -> "RaisedError":
        ours = WireError.of(error) if isinstance(error, ConduitError) else None
        lines = _fit("".join(traceback.format_exception(error))) if trace else ""
        return cls(safe_text(type(error).__name__), _fit(text_of(error)), ours, code_location(error), lines)

    def to_error(self) -> Exception:
        """An error that reads like the one that was raised, with its traceback as text."""
        error = self.ours.to_error() if self.ours is not None else named_type(self.name, Exception)(self.text)
        setattr(error, RAISED_AT, self.location)
        if self.trace:
            # Shown by `--debug`, with the error itself.
            error.__cause__ = RemoteTraceback(f"\n{self.trace}")
        return error


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text."""


# Bounded: hostile code could raise a class of another name for every record.
@lru_cache(maxsize=256)
def named_type(name: str, kind: type) -> Callable[..., Any]:
    """A class of this name, and nothing else of it: messages about a value show the name of its class."""
    return type(name, (kind,), {})


def _fit(text: str) -> str:
    # Redacted here, where every error passes on its way out: a saved status outlives the rotation of a password.
    return safe_text(redact(text))


def _family(kind: type[ConduitError]) -> str:
    ancestors = (each for each in kind.__mro__ if issubclass(each, ConduitError))
    return next(each.code for each in ancestors if each.__module__ == errors.__name__)


def _classes(root: type[ConduitError]) -> Iterator[tuple[str, type[ConduitError]]]:
    """Our error classes that are loaded, by code. A user's subclass often has the code of the class above it."""
    for kind in root.__subclasses__():
        yield from _classes(kind)
    if root.__module__.startswith("conduit_py.") and "code" in vars(root):
        yield root.code, root


def safe_text(text: str) -> str:
    r"""Return the text with every lone surrogate written out, as `\ud800`; any other text unchanged."""
    # A file name or a record may contain one, and then no file, database or HTTP response can encode the text.
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text

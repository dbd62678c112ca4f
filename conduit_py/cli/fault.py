"""Fault: an error in the shape in which the API gives errors, for commands that answer in JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conduit_py.cli.output import put_json
from conduit_py.cli.table import printable
from conduit_py.errors import ConduitError


class ServerRefused(ConduitError):
    """The server answered with an error; `fault` is what it said."""

    code = "server.refused"

    def __init__(self, fault: dict[str, Any], suggestion: str | None) -> None:
        self.fault = fault
        super().__init__(printable(f"{fault['message']} [{fault['code']}]"), suggestion=suggestion)


@contextmanager
def putting_fault(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, an error is on stdout too, as `{"error": {"code", "message", "suggestion"}}`, and goes on."""
    try:
        yield
    except ConduitError as error:
        if as_json:
            put_json({"error": _fields(error)})
        raise


def _fields(error: ConduitError) -> dict[str, Any]:
    if isinstance(error, ServerRefused):
        return error.fault
    return {"code": error.code, "message": error.message, "suggestion": error.suggestion}

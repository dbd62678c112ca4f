"""An error as JSON on stdout, in the form that the API gives errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conduit_py.cli.output import printable, put_json
from conduit_py.errors import ConduitError


class ServerRefused(ConduitError):
    """The server answered with an error; `error_body` is what it said."""

    code = "server.refused"

    def __init__(self, error_body: dict[str, Any], suggestion: str | None) -> None:
        self.error_body = error_body
        super().__init__(printable(f"{error_body['message']} [{error_body['code']}]"), suggestion=suggestion)


@contextmanager
def print_error_as_json(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, an error is on stdout too, as `{"error": {"code", "message", "suggestion"}}`, and goes on."""
    try:
        yield
    except ConduitError as error:
        if as_json:
            put_json({"error": _error_body(error)})
        raise


def _error_body(error: ConduitError) -> dict[str, Any]:
    if isinstance(error, ServerRefused):
        return error.error_body
    return {"code": error.code, "message": error.message, "suggestion": error.suggestion}

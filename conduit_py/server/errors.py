"""Every error as an HTTP status and one stable body, `{"error": {"code", "message", …}}`."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conduit_py import errors
from conduit_py.errors import ConduitError
from conduit_py.sdk.registry import PluginUnknown
from conduit_py.server.service import Redaction
from conduit_py.server.views import ApiModel
from conduit_py.wire_error import INTERNAL, WireError

log = logging.getLogger("conduit_py.server")

STATUSES: list[tuple[type[ConduitError], HTTPStatus]] = [
    (errors.PipelineUnknown, HTTPStatus.NOT_FOUND),
    (errors.LetterUnknown, HTTPStatus.NOT_FOUND),
    (PluginUnknown, HTTPStatus.NOT_FOUND),
    (errors.ShuttingDown, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.FleetError, HTTPStatus.CONFLICT),
    (errors.PipelineInvalid, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.RecordRefused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.EnvironmentUnfit, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.StateFailed, HTTPStatus.SERVICE_UNAVAILABLE),
]
"""The first match counts, so a subclass stands before its base."""

CODES = {
    HTTPStatus.BAD_REQUEST: "request.malformed",
    HTTPStatus.UNAUTHORIZED: "access.token_missing",
    HTTPStatus.FORBIDDEN: "access.refused",
    HTTPStatus.NOT_FOUND: "path.unknown",
    HTTPStatus.METHOD_NOT_ALLOWED: "method.not_allowed",
    HTTPStatus.REQUEST_TIMEOUT: "request.timed_out",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request.too_large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "request.invalid",
}
"""The codes of what is wrong with a request itself."""


class ErrorBody(ApiModel):
    """What is wrong, where in the request, and what to do about it: WireError, for the OpenAPI document."""

    code: str
    message: str
    path: str | None = None
    suggestion: str | None = None


class ErrorAnswer(ApiModel):
    """The body of every answer that is an error."""

    error: ErrorBody


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for the OpenAPI document: these, and those that any route may give."""
    everywhere = (400, 401, 403, 405, 408, 413, 422, 500)
    return {status: {"model": ErrorAnswer} for status in sorted({*everywhere, *statuses})}


def error_response(status: int, error: WireError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    fields = {name: value for name, value in error.to_fields().items() if value is not None}
    return JSONResponse({"error": fields}, status, headers=headers)


def handle_errors(app: FastAPI, redaction: Redaction, routes: Sequence[APIRoute]) -> None:
    """Make the app answer every expected error of its routes in this shape, without secrets."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        status, wire_error, headers = status_and_error(error)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"allow": _allowed_methods(routes, request.scope["path"])}
        # Here, where every error passes: the message of a client library may quote a password.
        redacted = msgspec.structs.replace(
            wire_error,
            message=redaction(wire_error.message),
            suggestion=wire_error.suggestion and redaction(wire_error.suggestion),
        )
        return error_response(status, redacted, headers)

    for kind in (ConduitError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _allowed_methods(routes: Sequence[APIRoute], path: str) -> str:
    """The methods of all routes with this path: the framework names those of the first only."""
    return ", ".join(
        sorted({method for route in routes if route.path_regex.match(path) for method in route.methods or ()})
    )


def status_and_error(error: Exception) -> tuple[int, WireError, Mapping[str, str] | None]:
    """The status, the error and further headers with which an error is answered."""
    if isinstance(error, RequestValidationError):
        return 422, _invalid_request(error), None
    if isinstance(error, HTTPException):
        code = CODES.get(HTTPStatus(error.status_code), "request.refused")
        return error.status_code, WireError(code, str(error.detail)), error.headers
    assert isinstance(error, ConduitError)
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    return status, WireError.of(error), None


def _invalid_request(error: RequestValidationError) -> WireError:
    # The first only, and never the value: it may be a secret that was put in the wrong place.
    # One about a value, if there is one: the first form of a body to be tried may lack everything.
    shapes = ("missing", "extra_forbidden")
    found = error.errors()
    first = next((each for each in found if each["type"] not in shapes), found[0])
    path = ".".join(str(part) for part in first["loc"])
    return WireError("request.invalid", f"{path}: {first['msg']}", path=path)


class UnexpectedErrors:
    """Answers an unexpected error with status 500 and an id. The log has the same id with the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:  # the boundary of one request
            # The caller gets only the id: the message of an unexpected error may quote a record or a path.
            id = secrets.token_hex(8)
            log.exception("error %s in %s %r", id, scope.get("method", scope["type"]), scope.get("path"))
            # Once headers are sent no other answer can begin; the client sees the stream break off.
            if scope["type"] == "http" and not started:
                error = WireError(
                    INTERNAL,
                    f"an error of conduit-py itself, {id}",
                    suggestion="look for this id in the log of the server",
                )
                await error_response(500, error)(scope, receive, send)

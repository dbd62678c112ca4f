"""Hooks: `/hooks/PIPELINE/SOURCE` passes requests to sources that take them.

No token is needed: a sender of records has a signature that the source checks, not a role here.
"""

import logging
from urllib.parse import unquote_to_bytes

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from conduit_py.errors import PipelineUnknown
from conduit_py.sdk.endpoint import EndpointSource, HttpAnswer
from conduit_py.sdk.plugin import Options
from conduit_py.server.access import HOOKS_PATH
from conduit_py.server.errors import error_response
from conduit_py.server.service import Service
from conduit_py.user_errors import as_error
from conduit_py.wire_error import WireError

log = logging.getLogger("conduit_py.server")

BODY_SECONDS = 15.0
RETRY_SECONDS = 5


class Hooks:
    """Answers what is sent to a hook; everything else passes. It comes before the body limit: a source has its own."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(HOOKS_PATH):
            await self._app(scope, receive, send)
            return
        response = await self._answer(scope, receive)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        found = self._find(scope)
        if isinstance(found, Response):
            return found
        try:
            answer = await found.answer_request(_HookRequest(scope, receive))
        except BaseException as raised:  # plugin boundary: an error of a source may not end the server
            log.error("hook %s failed", scope["path"], exc_info=as_error(raised))
            return _later("hook.failed", "the source could not take the request")
        return _response(answer)

    def _find(self, scope: Scope) -> EndpointSource[Options] | Response:
        # From the raw path: an id may have a slash that is written as %2F.
        parts = [unquote_to_bytes(part).decode(errors="replace") for part in scope["raw_path"].split(b"/")[2:]]
        unknown = error_response(404, WireError("hook.unknown", "there is no such hook"))
        if len(parts) != 2:
            return unknown
        pipeline, source = parts
        try:
            member = self._service.fleet[pipeline]
        except PipelineUnknown:
            return unknown
        declared = {each.id: each.connector for each in member.pipeline.sources}.get(source)
        if not isinstance(declared, EndpointSource):
            return unknown
        supervisor = member.supervisor
        endpoint = supervisor.endpoint(source) if supervisor is not None else None
        return endpoint or _later("hook.not_running", "the pipeline of this hook does not run now")


class _HookRequest:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        self._receive = receive

    async def read_body(self, size_max: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            # One deadline for the whole body: a byte now and then would renew a limit on each read.
            with trio.fail_after(BODY_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError("the client left")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > size_max:
                        raise ValueError(f"the body is longer than {size_max} bytes")
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except trio.TooSlowError as error:
            raise TimeoutError("the body did not arrive in time") from error


def _later(code: str, message: str) -> Response:
    return error_response(503, WireError(code, message), headers={"retry-after": str(RETRY_SECONDS)})


def _response(answer: HttpAnswer) -> Response:
    headers = {"content-type": "application/json"} | dict(answer.headers)
    # What was not read of the body would be taken for the next request.
    closing = {"connection": "close"} if answer.status in (408, 413, 503) else {}
    return Response(answer.body, status_code=answer.status, headers=headers | closing)

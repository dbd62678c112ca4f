"""ApiClient: what commands call: a server, or a state directory that no server uses."""

import logging
import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import trio

from conduit_py.cli.errors import print_error_as_json
from conduit_py.cli.server_commands import ServerCall, StateCall
from conduit_py.cli.state import choose_state
from conduit_py.client import Client
from conduit_py.errors import ConduitError, EnvironmentUnfit
from conduit_py.wire_error import WireError

if TYPE_CHECKING:
    from conduit_py.config.loaded import LoadedPipeline
    from conduit_py.lifecycle.fleet import Fleet
    from conduit_py.store.store import Store

log = logging.getLogger("conduit_py")

TOKEN_VARIABLE = "CONDUIT_API_TOKEN"


class ApiClient(Client):
    """The server of a command. Answers are plain values: `--json` prints them as they came."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call
        tls = _tls(call) if call.url.startswith("https") else None
        super().__init__(call.url, token=load_token(call.token_file), tls=tls, transport=_offline(call))

    def _advice(self, error: WireError) -> str | None:
        if error.code == "access.token_missing":
            return f"give a valid token with --token-file or {TOKEN_VARIABLE}"
        if error.code == "access.refused":
            return f"give a token that allows it, with --token-file or {TOKEN_VARIABLE}"
        return super()._advice(error)

    def _way_to(self, error: httpx2.HTTPError) -> str:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return "give the certificate to trust with --tls-ca or the variable SSL_CERT_FILE"
        if "CERTIFICATE_REQUIRED" in str(error) or "alert certificate required" in str(error):
            return "the server requires a client certificate: give --tls-cert and --tls-key"
        start = "start one with `conduit-py serve`, or give its address with --url or CONDUIT_URL"
        if isinstance(self._call, StateCall):
            return f"{start}; what `run` left behind needs no server: give --state {choose_state()}"
        return start


@contextmanager
def connect(call: ServerCall) -> Iterator[ApiClient]:
    """A client for one command. With --json, errors are also printed on stdout."""
    with print_error_as_json(as_json=call.json), ApiClient(call) as client:
        yield client


def _tls(call: ServerCall) -> ssl.SSLContext:
    """The certificates to trust, and the one to show to a server that requires client certificates."""
    if call.tls_key is not None and call.tls_cert is None:
        raise EnvironmentUnfit("--tls-key requires --tls-cert", suggestion="give both or neither")
    try:
        context = ssl.create_default_context(cafile=call.tls_ca)
        if call.tls_cert is not None:
            context.load_cert_chain(call.tls_cert, call.tls_key)
    except OSError as error:  # SSLError is one
        raise EnvironmentUnfit(
            f"the TLS files cannot be used: {error.strerror or error}",
            suggestion="check --tls-ca, --tls-cert and --tls-key: PEM files, and the key of the certificate",
        ) from error
    return context


def load_token(file: Path | None) -> str | None:
    """The token in a file, else the one in the environment, if any.

    The file holds the token alone, or one `ROLE TOKEN` as a server's own file does. No message quotes it.
    """
    if file is None:
        return _plain(os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE) or None
    lines = [words for line in _private_text(file).splitlines() if (words := line.partition("#")[0].split())]
    if len(lines) != 1 or len(lines[0]) > 2:
        found = "no token" if not lines else "more than one token"
        raise EnvironmentUnfit(f"token file {file} has {found}", suggestion="leave one line with the token in it")
    return _plain(lines[0][-1], f"token file {file}")


def _private_text(file: Path) -> str:
    try:
        with file.open(encoding="ascii") as opened:
            # The open file, not the path: another file could be put there between check and read.
            if os.fstat(opened.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise EnvironmentUnfit(f"token file {file} can be used by others", suggestion=f"chmod 600 {file}")
            return opened.read(64 * 1024)
    except OSError as error:
        raise EnvironmentUnfit(f"token file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise EnvironmentUnfit(f"token file {file} holds no token, but other data") from None


def _plain(token: str, place: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise EnvironmentUnfit(f"{place}: a token has letters, digits and any of ._~+/-= only")
    return token


def _offline(call: ServerCall) -> httpx2.BaseTransport | None:
    """What answers instead of a server, if the call names a state."""
    if not isinstance(call, StateCall) or call.state is None:
        return None
    return OfflineTransport(call.state, call.pipelines)


class OfflineTransport(httpx2.BaseTransport):
    """The API over a state, without a server and without running anything.

    The state is open, and locked, for one request at a time. Pipelines come from `pipelines`, else from the files
    that the state has recorded for them. Positions and replays need them; letters can be read without.
    """

    def __init__(self, state: str, pipelines: Path | None = None) -> None:
        self._state = state
        self._pipelines = pipelines
        self._loaded: dict[Path, list[LoadedPipeline]] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        # Opening would create it, and a mistyped directory would look like one without any letters.
        if "://" not in self._state and not Path(self._state, "state.db").exists():
            raise EnvironmentUnfit(
                f"there is no state in {self._state}", suggestion="give the directory that `run` or `serve` has used"
            )
        if self._pipelines is not None and not self._pipelines.exists():
            raise EnvironmentUnfit(f"there is no {self._pipelines}", suggestion="name the file of the pipelines")
        return trio.run(self._answer, request)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        # Imported late: this needs the whole server, which a call of one does not.
        from conduit_py.lifecycle.fleet import Fleet
        from conduit_py.lifecycle.supervisor import Supervisor
        from conduit_py.server.serve import ServerConfig, create_app
        from conduit_py.server.service import Service
        from conduit_py.store.store import open_store

        async with await open_store(self._state) as store, trio.open_nursery() as nursery:
            fleet = Fleet(store, nursery, engine=Supervisor)
            for each in await self._definitions(store):
                await _add(fleet, each)
            service = Service(fleet, store, nursery)
            app = create_app(service, ServerConfig().policy)
            answer = await httpx2.ASGITransport(app=app).handle_async_request(request)
            content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)

    async def _definitions(self, store: "Store") -> "list[LoadedPipeline]":
        if self._pipelines is not None:
            return self._load(self._pipelines)
        found = []
        for id in await store.pipelines():
            origin = await store.origin(id)
            if origin is not None:
                found += [each for each in self._load(Path(origin)) if each.id == id]
        return found

    def _load(self, path: Path) -> "list[LoadedPipeline]":
        from conduit_py.config.definitions import Definitions

        # Once for each command, which may make several requests: a file of Python runs when it is loaded.
        if path not in self._loaded:
            # A file may have been moved since; its letters can still be read.
            self._loaded[path] = list(Definitions(path).read().whole.pipelines) if path.exists() else []
        return self._loaded[path]


async def _add(fleet: "Fleet", loaded: "LoadedPipeline") -> None:
    try:
        await fleet.add(loaded.graph)
    except ConduitError as error:
        # The letters of a pipeline that has a problem now can still be read.
        log.warning("%s: pipeline %s cannot be used: %s", loaded.file, loaded.id, error.message)

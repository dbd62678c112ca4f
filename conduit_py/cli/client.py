"""ApiClient: calls the API of a server; every failure becomes a ConduitError with a suggestion."""

import json
import os
import ssl
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conduit_py.cli.errors import ServerRefused, print_error_as_json
from conduit_py.cli.project_state import choose_state
from conduit_py.cli.server_commands import ServerCall, StateCall
from conduit_py.errors import EnvironmentUnfit
from conduit_py.wire_error import WireError

try:
    import httpx2
except ModuleNotFoundError as error:
    raise EnvironmentUnfit(
        f"calling a server needs {error.name}, which is not installed", suggestion="pip install httpx2"
    ) from error

TOKEN_VARIABLE = "CONDUIT_API_TOKEN"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0


class ServerUnreachable(EnvironmentUnfit):
    """No server answers at the address, or one that is not conduit-py."""

    code = "server.unreachable"


class ApiClient:
    """A server as its API shows it. Answers are plain values; every error is a ConduitError."""

    def __init__(self, call: ServerCall) -> None:
        self.url = call.url.rstrip("/")
        token = load_token(call.token_file)
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            verify=_tls(call) if self.url.startswith("https") else False,
            # A proxy that the environment names would see the token, and often cannot reach this machine.
            trust_env=False,
            transport=_offline(call),
        )
        self._call = call

    def __enter__(self) -> "ApiClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(
        self, method: str, *path: str, body: dict[str, Any] | None = None, query: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call `/api/v1/` and the path, and return the answer."""
        with self._reaching():
            response = self._http.request(method, _path(path), json=body, params=query)
        return self._answer(response)

    def events(self, *path: str) -> Generator[dict[str, Any], None, None]:
        """The data of server-sent events, until the server ends the stream."""
        for _, data in self.stream(*path):
            yield data

    def stream(
        self, *path: str, query: Mapping[str, int] | None = None
    ) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Server-sent events, each with its name, until the server ends the stream."""
        name = ""
        with self._reaching(), self._http.stream("GET", _path(path), params=query) as response:
            if response.headers.get("content-type", "").partition(";")[0] != "text/event-stream":
                # A refusal is no stream: its body is read whole for the error in it.
                response.read()
                self._answer(response)
                raise self._foreign(response)
            for line in response.iter_lines():
                if line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    yield name, json.loads(line.removeprefix("data:"))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TimeoutException as error:
            raise ServerUnreachable(
                f"the server at {self.url} does not answer", suggestion="look at its log"
            ) from error
        except httpx2.HTTPError as error:
            raise ServerUnreachable(
                f"cannot reach a server at {self.url}: {error}", suggestion=_way_to(error, self._call)
            ) from error

    def _answer(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            raise self._foreign(response) from None
        if response.is_success and isinstance(answer, dict):
            return answer
        error = WireError.from_fields(answer.get("error")) if isinstance(answer, dict) else None
        if error is None:
            raise self._foreign(response)
        raise ServerRefused(error, _advice(error))

    def _foreign(self, response: httpx2.Response) -> ServerUnreachable:
        return ServerUnreachable(
            f"the server at {self.url} is not a conduit-py server (HTTP status {response.status_code})",
            suggestion="give the server's address with --url or CONDUIT_URL",
        )


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


def _advice(error: WireError) -> str | None:
    if error.code == "access.token_missing":
        return f"give a valid token with --token-file or {TOKEN_VARIABLE}"
    if error.code == "access.refused":
        return f"give a token that allows it, with --token-file or {TOKEN_VARIABLE}"
    return error.suggestion


def _offline(call: ServerCall) -> httpx2.BaseTransport | None:
    """What answers instead of a server, if the call names a state."""
    if not isinstance(call, StateCall) or call.state is None:
        return None
    # Imported late: it needs the whole server, which a call of one does not.
    from conduit_py.cli.offline import OfflineTransport

    return OfflineTransport(call.state, call.pipelines)


def _way_to(error: httpx2.HTTPError, call: ServerCall) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "give the certificate to trust with --tls-ca or the variable SSL_CERT_FILE"
    if "CERTIFICATE_REQUIRED" in str(error) or "alert certificate required" in str(error):
        return "the server requires a client certificate: give --tls-cert and --tls-key"
    start = "start one with `conduit-py serve`, or give its address with --url or CONDUIT_URL"
    if isinstance(call, StateCall):
        return f"{start}; what `run` left behind needs no server: give --state {choose_state()}"
    return start


def _path(parts: tuple[str, ...]) -> str:
    # Dots too: httpx2 would resolve an id `..` as the folder above, which is another endpoint.
    return "/api/v1/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)

"""ConnectionOptions: how to reach an HTTP server, for the source and the destination."""

import re
from typing import Annotated, Final, TypedDict

import httpx2
from pydantic import AfterValidator, Field, SecretStr, model_validator

from conduit_connectors.http.guard import SCHEMES
from conduit_py.sdk import Options
from conduit_py.sdk.template import option_error

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_url(url: str) -> str:
    """Return the URL, if a request can be made to it."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise option_error(f"must be a URL ({error})") from None
    if parsed.scheme not in SCHEMES or not parsed.host:
        raise option_error("must be a URL that begins with http:// or https:// and has a host")
    if parsed.userinfo:
        raise option_error("must be a URL without a user", "use username and password")
    return url


def check_headers(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Return the headers, if they can be sent."""
    for name, value in headers.items():
        text = value.get_secret_value()
        if not _TOKEN.fullmatch(name):
            raise option_error(f"must be names of headers (there is {name!r})")
        if not text.isprintable() or not text.isascii():
            raise option_error(f"must be values in printable ASCII (that of {name} is not)")
    return headers


HttpUrl = Annotated[str, AfterValidator(check_url)]
HttpHeaders = Annotated[dict[str, SecretStr], AfterValidator(check_headers)]


class ConnectionOptions(Options):
    """How requests are made: headers, credentials, limits, TLS."""

    headers: HttpHeaders = Field(default={}, description="headers of every request; their values are secrets")
    bearer_token: SecretStr | None = Field(default=None, description="the token of `Authorization: Bearer`")
    username: str | None = Field(default=None, description="the user of basic authentication")
    password: SecretStr | None = Field(default=None, description="the password of basic authentication")
    token_url: HttpUrl | None = Field(default=None, description="where OAuth2 gives tokens for client credentials")
    client_id: str | None = Field(default=None, description="the client of OAuth2")
    client_secret: SecretStr | None = Field(default=None, description="the secret of that client")
    scope: str | None = Field(default=None, description="the scopes to ask for, with spaces between")
    allow_hosts: list[str] = Field(
        default=[], description="further hosts that links and redirects may lead to; private addresses need to be here"
    )
    timeout_seconds: float = Field(default=30.0, gt=0, description="how long one request and its whole answer may take")
    response_size_max: int = Field(default=16 * 1024 * 1024, ge=1, description="the longest answer, in bytes")
    requests_per_second: float | None = Field(default=None, gt=0, description="how many requests are made at most")
    retries: int = Field(
        default=10,
        ge=0,
        description="how often a request is made again after 408, 425, 429, 5xx or no answer, before the pipeline "
        "starts again; `Retry-After` decides when, else a growing delay",
    )
    ca_file: str | None = Field(default=None, description="the certificates to trust, in PEM; else those of the system")
    cert_file: str | None = Field(default=None, description="the certificate of this client, in PEM")
    key_file: str | None = Field(default=None, description="the key of that certificate")

    @model_validator(mode="after")
    def _check_credentials(self) -> "ConnectionOptions":
        ways = {
            "bearer_token": self.bearer_token,
            "username": self.username,
            "token_url": self.token_url,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise option_error(f"has {' and '.join(given)}: give one way to authenticate")
        if (self.username is None) != (self.password is None):
            raise option_error("must have username and password, or neither")
        oauth2 = (self.token_url, self.client_id, self.client_secret)
        if len({each is None for each in oauth2}) > 1:
            raise option_error("must have token_url, client_id and client_secret, or none of them")
        if given and any(name.lower() == "authorization" for name in self.headers):
            raise option_error(f"has {given[0]} and a header Authorization: give one of them")
        if (self.cert_file is None) != (self.key_file is None):
            raise option_error("must have cert_file and key_file, or neither")
        return self


class ConnectionArguments(TypedDict, total=False):
    """ConnectionOptions as a caller writes them, for editors and type checkers."""

    headers: dict[str, str | SecretStr]
    bearer_token: str | SecretStr | None
    username: str | None
    password: str | SecretStr | None
    token_url: str | None
    client_id: str | None
    client_secret: str | SecretStr | None
    scope: str | None
    allow_hosts: list[str]
    timeout_seconds: float
    response_size_max: int
    requests_per_second: float | None
    retries: int
    ca_file: str | None
    cert_file: str | None
    key_file: str | None

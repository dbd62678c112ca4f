"""SourceOptions: where requests arrive, who may send them, and what a record is."""

from ipaddress import ip_address
from typing import Literal, TypedDict

from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_connectors.http.json_path import JsonPath
from conduit_py.sdk import Options
from conduit_py.sdk.template import option_error

BodyForm = Literal["json", "array", "raw"]


class SourceOptions(Options):
    """Where requests arrive, who may send them, and what a record is."""

    listen: str | None = Field(
        default=None, description="a port of its own, as host:port; else that of `conduit-py serve`, which must run it"
    )
    path: str = Field(default="/", pattern=r"^/[!-~]*$", description="the path on the port of its own")
    tls_cert: str | None = Field(default=None, description="the certificate of that port, in PEM")
    tls_key: str | None = Field(default=None, description="the key of the certificate")
    secret: SecretStr | None = Field(default=None, min_length=8, description="what the sender signs requests with")
    previous_secret: SecretStr | None = Field(
        default=None, min_length=8, description="another secret that is accepted too, while the secret is changed"
    )
    signature_header: str = Field(
        default="X-Hub-Signature-256", min_length=1, description="the header with the signature"
    )
    signature_style: Literal["plain", "stripe"] = Field(
        default="plain", description="the signature alone, or with its time as Stripe sends it: t=…,v1=…"
    )
    signature_algorithm: Literal["sha1", "sha256", "sha512"] = Field(
        default="sha256", description="the hash of the HMAC"
    )
    signature_prefix: str = Field(default="sha256=", description="what stands before the signature, if it is plain")
    signature_encoding: Literal["hex", "base64"] = Field(default="hex", description="how the signature is written")
    timestamp_header: str | None = Field(default=None, description="the header with the time, if the time is signed")
    signed_text: str = Field(
        default="{body}", description="what is signed, such as {timestamp}.{body} or v0:{timestamp}:{body}"
    )
    tolerance_seconds: float = Field(default=300.0, gt=0, description="how old the time of a signature may be")
    body: BodyForm = Field(
        default="json", description="a JSON object that is one record, a JSON array of them, or raw bytes"
    )
    key_header: str | None = Field(default=None, description="the header that names a request, to drop repeats by it")
    key_path: JsonPath | None = Field(default=None, description="where a record has its name, to drop repeats by it")
    keys_max: int = Field(default=1000, ge=1, le=4000, description="how many of the last names are remembered")
    keep_headers: list[str] = Field(default=[], description="headers to keep in the metadata, as webhook.header.NAME")
    body_size_max: int = Field(default=1024 * 1024, ge=1, description="the longest body, in bytes")
    waiting_max: int = Field(
        default=64,
        ge=1,
        description="how many requests may wait, and so many of body_size_max may be in memory; further ones get 503",
    )
    answer_seconds: float = Field(
        default=25.0, gt=0, description="how long a request waits until its records are durable, before it gets 503"
    )

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str | None) -> str | None:
        if listen is not None:
            host, _, port = listen.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise option_error("must be a host and a port", "write it as 127.0.0.1:8081")
        return listen

    @model_validator(mode="after")
    def _check_senders(self) -> "SourceOptions":
        if self.listen is not None and self.secret is None and not _is_loopback(self.listen.rpartition(":")[0]):
            raise option_error(
                "has no secret, and other machines could reach `listen`", "give secret, or listen on 127.0.0.1"
            )
        if self.previous_secret is not None and self.secret is None:
            raise option_error("has previous_secret without secret")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise option_error("must have tls_cert and tls_key, or neither")
        if self.signed_text.count("{body}") != 1:
            raise option_error("must have {body} once in signed_text")
        if self.signature_style == "plain" and ("{timestamp}" in self.signed_text) != bool(self.timestamp_header):
            raise option_error("must have timestamp_header and {timestamp} in signed_text, or neither")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> "SourceOptions":
        if self.key_header is not None and self.key_path is not None:
            raise option_error("has key_header and key_path: give one of them")
        if self.key_path is not None and self.body == "raw":
            raise option_error("has key_path, which raw bytes do not have", "use key_header")
        return self

    @property
    def signs_time(self) -> bool:
        return self.signature_style == "stripe" or self.timestamp_header is not None


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    listen: str | None
    path: str
    tls_cert: str | None
    tls_key: str | None
    secret: str | SecretStr | None
    previous_secret: str | SecretStr | None
    signature_header: str
    signature_style: Literal["plain", "stripe"]
    signature_algorithm: Literal["sha1", "sha256", "sha512"]
    signature_prefix: str
    signature_encoding: Literal["hex", "base64"]
    timestamp_header: str | None
    signed_text: str
    tolerance_seconds: float
    body: BodyForm
    key_header: str | None
    key_path: str | JsonPath | None
    keys_max: int
    keep_headers: list[str]
    body_size_max: int
    waiting_max: int
    answer_seconds: float


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

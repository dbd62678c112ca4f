"""Signatures: shows that a request comes from somebody who has the secret, and that it is not an old one sent again."""

import base64
import hmac
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import SecretStr

from conduit_connectors.webhook.source_options import SourceOptions

_SECONDS: Final = re.compile(r"[0-9]{1,12}")


def signature_error(
    options: SourceOptions, headers: Sequence[tuple[str, str]], body: bytes, now: float | None = None
) -> str | None:
    """Return why a request is not from somebody who has the secret; None if it is."""
    secrets = [each for each in (options.secret, options.previous_secret) if each is not None]
    if not secrets:
        return None
    header = _only(headers, options.signature_header)
    if header is None:
        return f"there is no header {options.signature_header}, or more than one"
    if options.signature_style == "stripe":
        fields = [part.strip().partition("=")[::2] for part in header.split(",")]
        timestamp = next((value for name, value in fields if name == "t"), "")
        given = [value for name, value in fields if name == "v1"]
    else:
        timestamp = "" if options.timestamp_header is None else _only(headers, options.timestamp_header) or ""
        # Some senders give a signature for each of their secrets, with spaces between.
        given = [each.removeprefix(options.signature_prefix) for each in _signatures(header, options.signature_prefix)]
    if options.signs_time and (late := _time_error(timestamp, options.tolerance_seconds, now or time.time())):
        return late
    expected = [_sign(options, secret, timestamp, body) for secret in secrets]
    # Every pair is compared, each in constant time, so that nothing can be learned from how long it takes.
    matches = [hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given[:10]]
    return None if any(matches) else "the signature does not fit the body"


def _signatures(header: str, prefix: str) -> Iterator[str]:
    for part in header.split():
        if part.startswith(prefix):
            yield part


def _sign(options: SourceOptions, secret: SecretStr, timestamp: str, body: bytes) -> str:
    text = options.signed_text if options.signature_style == "plain" else "{timestamp}.{body}"
    before, _, after = text.partition("{body}")
    signed = [part.replace("{timestamp}", timestamp).encode() for part in (before, after)]
    made = hmac.new(secret.get_secret_value().encode(), signed[0] + body + signed[1], options.signature_algorithm)
    return base64.b64encode(made.digest()).decode() if options.signature_encoding == "base64" else made.hexdigest()


def _time_error(timestamp: str, tolerance_seconds: float, now: float) -> str | None:
    if not _SECONDS.fullmatch(timestamp):
        return "the time of the signature is missing, or is no number of seconds"
    if abs(now - int(timestamp)) > tolerance_seconds:
        return f"the signature is from more than {tolerance_seconds:g} s before or after now"
    return None


def _only(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return the value of a header that is there exactly once: two could be read in two ways."""
    values = [value for each, value in headers if each == name.lower()]
    return values[0].strip() if len(values) == 1 and values[0].isascii() else None

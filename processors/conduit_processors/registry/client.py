"""RegistryClient: asks a schema registry by HTTP, on trio, with time-outs and retries."""

import random
import ssl
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec
import trio

from conduit_processors.registry.options import RegistryOptions, SchemaReference
from conduit_py.sdk import FatalError, TransientError

ANSWER_SIZE_MAX: Final = 2 * 1024 * 1024
REFERENCES_MAX: Final = 100
_DELAY_SECONDS: Final = 0.1
_DELAY_MAX_SECONDS: Final = 5.0
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_SCHEMA_IDS_MAX: Final = 2**32


class SchemaUnusable(Exception):
    """The registry has no such schema, or one that cannot be used. The caller decides what that means."""


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as the registry has it. `types` are the names and texts of the schemas that it uses, used ones first."""

    id: int
    kind: str
    text: str
    types: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """Requests to one registry.

    A registry that does not answer, or answers with an error of its own, is asked again for `retry_seconds`; then
    TransientError is raised, so no record is refused for it. An answer that refuses the client is a FatalError.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._rng = random.Random()
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Accept-Encoding": "identity"}
        if options.token is not None:
            headers["Authorization"] = f"Bearer {options.token.get_secret_value()}"
        auth = None
        if options.username is not None and options.password is not None:
            auth = httpx2.BasicAuth(options.username, options.password.get_secret_value())
        self._http = httpx2.AsyncClient(
            headers=headers, auth=auth, verify=_tls(options), timeout=options.timeout_seconds, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        """Raises SchemaUnusable if there is no such schema."""
        answer = await self._ask("GET", f"/schemas/ids/{schema_id}")
        return await self._complete(schema_id, answer, f"schema {schema_id}")

    async def schema_by_version(self, subject: str, version: int | str) -> RegisteredSchema:
        """Raises SchemaUnusable if there is no such subject or version."""
        answer = await self._ask("GET", f"/subjects/{_escape(subject)}/versions/{version}")
        return await self._complete(_id_in(answer), answer, f"version {version} of subject {subject!r}")

    async def find_id(self, subject: str, kind: str, text: str, references: tuple[SchemaReference, ...]) -> int:
        """Return the id of a schema that the subject has. Raises SchemaUnusable if it does not have it."""
        return _id_in(await self._ask("POST", f"/subjects/{_escape(subject)}", _body(kind, text, references)))

    async def register(self, subject: str, kind: str, text: str, references: tuple[SchemaReference, ...]) -> int:
        """Add a schema to a subject; return its id. Raises SchemaUnusable if the registry does not take it."""
        return _id_in(await self._ask("POST", f"/subjects/{_escape(subject)}/versions", _body(kind, text, references)))

    async def allow_all_changes(self, subject: str) -> None:
        """Have the registry take every later schema of this subject."""
        await self._ask("PUT", f"/config/{_escape(subject)}", {"compatibility": "NONE"})

    async def has_subject(self, subject: str) -> bool:
        try:
            await self._ask("GET", f"/subjects/{_escape(subject)}/versions")
        except SchemaUnusable:
            return False
        return True

    async def resolve(self, references: tuple[SchemaReference, ...]) -> tuple[tuple[str, str], ...]:
        """Return the names and texts of these schemas and of all that they use, used ones first."""
        types: dict[str, str] = {}
        await self._resolve(references, types, set(), [])
        return tuple(types.items())

    async def _resolve(
        self, references: tuple[SchemaReference, ...], types: dict[str, str], seen: set[SchemaReference], way: list[str]
    ) -> None:
        for reference in references:
            if reference.name in way:
                raise SchemaUnusable(f"its references form a ring: {' → '.join([*way, reference.name])[:500]}")
            if reference in seen:
                continue
            seen.add(reference)
            # Each is a request: a hostile schema could otherwise have any number of them made.
            if len(seen) > REFERENCES_MAX:
                raise SchemaUnusable(f"it refers to more than {REFERENCES_MAX} schemas")
            path = f"/subjects/{_escape(reference.subject)}/versions/{reference.version}"
            answer = await self._ask("GET", path)
            text = _text_in(answer)
            await self._resolve(_references_in(answer), types, seen, [*way, reference.name])
            types[reference.name] = text

    async def _complete(self, schema_id: int, answer: Any, name: str) -> RegisteredSchema:
        text = _text_in(answer)
        try:
            types = await self.resolve(_references_in(answer))
        except SchemaUnusable as unusable:
            raise SchemaUnusable(f"{name}: {unusable}") from unusable
        return RegisteredSchema(schema_id, str(answer.get("schemaType") or "AVRO"), text, types)

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        deadline = trio.current_time() + self._options.retry_seconds
        attempt = 0
        while True:
            try:
                return await self._ask_once(method, path, body)
            except TransientError:
                if trio.current_time() >= deadline:
                    raise
            delay = min(_DELAY_SECONDS * 2 ** min(attempt, 10), _DELAY_MAX_SECONDS)
            await trio.sleep(delay * (1 - self._rng.random() / 2))
            attempt += 1

    async def _ask_once(self, method: str, path: str, body: Any) -> Any:
        content = None if body is None else msgspec.json.encode(body)
        headers = None if body is None else {"Content-Type": _MEDIA_TYPE}
        try:
            # All of the answer at once: the time-outs of the client are for each of its parts.
            with trio.fail_after(self._options.timeout_seconds):
                async with self._http.stream(
                    method, self._options.url + path, content=content, headers=headers
                ) as response:
                    text = bytearray()
                    async for chunk in response.aiter_raw():
                        text += chunk
                        if len(text) > ANSWER_SIZE_MAX:
                            raise SchemaUnusable(f"the registry's answer has more than {ANSWER_SIZE_MAX} bytes")
        except trio.TooSlowError:
            raise self._unavailable(f"did not answer within {self._options.timeout_seconds:g} s") from None
        except httpx2.HTTPError as error:
            if (untrusted := _certificate_error(error)) is not None:
                raise FatalError(
                    f"the certificate of {self._options.url} is not trusted: {untrusted.verify_message}",
                    suggestion="check the url, and ca_file",
                ) from error
            raise self._unavailable(f"cannot be reached: {error or type(error).__name__}") from error
        return self._read(response.status_code, bytes(text))

    def _read(self, status: int, text: bytes) -> Any:
        answer = _json(text)
        if status < 300 and isinstance(answer, dict | list):
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        reason = str(answer.get("message", "") if isinstance(answer, dict) else "")[:500]
        if status in (408, 425, 429) or status >= 500:
            raise self._unavailable(f"answered {status} {reason}".rstrip())
        if status in (401, 403):
            hint = "check username and password, or token"
            raise FatalError(f"the schema registry at {self._options.url} refuses access: {status}", suggestion=hint)
        # A registry numbers its errors. Without a number, something else answers at this address.
        if isinstance(code, int) and status in (404, 409, 422):
            raise SchemaUnusable(f"the registry says: {reason} (code {code})")
        raise FatalError(
            f"what answers at {self._options.url} is no schema registry: {status} {text[:100]!r}",
            suggestion="check the url; that of Apicurio ends in /apis/ccompat/v7",
        )

    def _unavailable(self, what: str) -> TransientError:
        return TransientError(
            f"the schema registry at {self._options.url} {what}", suggestion="check the url and that the registry runs"
        )


def _tls(options: RegistryOptions) -> ssl.SSLContext | bool:
    if not options.url.startswith("https"):
        # Reading the certificates of the machine takes longer than the rest of `open`.
        return False
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file is not None:
            context.load_cert_chain(options.cert_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        raise FatalError(
            f"the certificates for {options.url} cannot be used: {error}",
            suggestion="check ca_file, cert_file and key_file",
        ) from error
    return context


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the reason why a certificate is not trusted, if that is what an error comes from."""
    cause: BaseException | None = error
    for _ in range(10):  # a chain of causes may be a ring
        if cause is None or isinstance(cause, ssl.SSLCertVerificationError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _escape(subject: str) -> str:
    """A subject may come from a record, and must stay one part of the path."""
    # A lone surrogate has no UTF-8, and dots alone would name another folder.
    escaped = quote(subject, safe="", errors="replace")
    return escaped.replace(".", "%2E") if not subject.strip(".") else escaped


def _body(kind: str, text: str, references: tuple[SchemaReference, ...]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
    return body | {"references": [each.model_dump() for each in references]} if references else body


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _id_in(answer: Any) -> int:
    number = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(number, int) or not 0 <= number < _SCHEMA_IDS_MAX:
        raise SchemaUnusable(f"the registry's answer has no id: {str(answer)[:200]}")
    return number


def _text_in(answer: Any) -> str:
    text = answer.get("schema") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise SchemaUnusable(f"the registry's answer has no schema: {str(answer)[:200]}")
    return text


def _references_in(answer: Any) -> tuple[SchemaReference, ...]:
    try:
        return tuple(
            SchemaReference(name=each["name"], subject=each["subject"], version=each["version"])
            for each in answer.get("references") or ()
        )
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaUnusable(f"the registry's answer has references of another form: {error}") from error

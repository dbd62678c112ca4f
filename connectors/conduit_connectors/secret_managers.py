"""Secrets of HashiCorp Vault (and OpenBao), AWS Secrets Manager and Google Secret Manager, by reference.

A reference is `vault:PATH#FIELD`, `aws:NAME#FIELD` or `gcp:projects/P/secrets/S#FIELD`. Each finds its server and its
credentials as the tools of its vendor do. Their client libraries are asked for when the first such secret is read.
"""

import base64
import binascii
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from conduit_py.sdk import SecretProvider, SecretUnavailable

SECONDS = 20.0
"""How long one request to a manager may take."""


class Vault(SecretProvider):
    """A field of a secret at a path of Vault's API: `vault:secret/data/orders#password`.

    `VAULT_ADDR` has the server; the token is in `VAULT_TOKEN`, in the file `VAULT_TOKEN_FILE` or in `~/.vault-token`.
    The file is read again for each secret, because an agent renews it. `VAULT_NAMESPACE` and `VAULT_CACERT` are used.
    """

    def read(self, reference: str) -> str:
        path, _, field = reference.partition("#")
        if not path or not field:
            raise SecretUnavailable(
                f"vault:{reference} does not name a path and a field",
                suggestion="write vault:secret/data/orders#password, with the path of the API",
            )
        address = os.environ.get("VAULT_ADDR")
        if not address:
            raise SecretUnavailable("VAULT_ADDR is not set", suggestion="set it to the URL of the Vault server")
        headers = {"X-Vault-Token": self._token(), "X-Vault-Request": "true"}
        if namespace := os.environ.get("VAULT_NAMESPACE"):
            headers["X-Vault-Namespace"] = namespace
        verify = os.environ.get("VAULT_CACERT") or True
        answer = _get(f"{address.rstrip('/')}/v1/{quote(path.strip('/'))}", "Vault", headers, verify=verify)
        if answer.status_code == 404:
            raise SecretUnavailable(
                f"Vault has no secret at {path}", suggestion="for an engine kv of version 2 write MOUNT/data/PATH"
            )
        if answer.status_code == 403:
            raise SecretUnavailable(
                f"Vault does not allow this token to read {path}", suggestion="look at its policies"
            )
        _require_success(answer, "Vault", path)
        found = _json_object(answer, "Vault").get("data")
        # Version 2 of the engine kv wraps the fields once more, beside their metadata.
        if isinstance(found, dict) and isinstance(found.get("data"), dict) and "metadata" in found:
            found = found["data"]
        return _field_of(found, field, f"vault:{path}")

    def _token(self) -> str:
        if token := os.environ.get("VAULT_TOKEN"):
            return token
        file = Path(os.environ.get("VAULT_TOKEN_FILE") or Path.home() / ".vault-token")
        try:
            return file.read_text().strip()
        except (OSError, ValueError) as error:
            raise SecretUnavailable(
                f"there is no token for Vault: VAULT_TOKEN is not set, and {file} cannot be read",
                suggestion="set VAULT_TOKEN or VAULT_TOKEN_FILE, or log in with `vault login`",
            ) from error


class AwsSecretsManager(SecretProvider):
    """A secret of AWS Secrets Manager, or a field of one that is a JSON object: `aws:orders/db#password`.

    Region, credentials and endpoint are found as boto3 finds them.
    """

    def __init__(self) -> None:
        import boto3
        import botocore.config
        import botocore.exceptions

        self._errors = botocore.exceptions
        config = botocore.config.Config(connect_timeout=SECONDS, read_timeout=SECONDS)
        self._make: Callable[[], Any] = lambda: boto3.client("secretsmanager", config=config)
        # Making a client is not safe in several threads, using it is.
        self._lock = threading.Lock()
        self._client: Any = None

    def read(self, reference: str) -> str:
        name, _, field = reference.partition("#")
        try:
            with self._lock:
                self._client = self._client or self._make()
            answer = self._client.get_secret_value(SecretId=name)
        except self._errors.ClientError as error:
            code, why = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            raise SecretUnavailable(f"AWS does not give the secret {name}: {code}: {why}") from error
        except self._errors.BotoCoreError as error:
            raise SecretUnavailable(
                f"AWS Secrets Manager cannot be asked for {name}: {error}",
                suggestion="set AWS_REGION and credentials, or give this machine a role",
            ) from error
        text = answer.get("SecretString")
        if text is None:
            raise SecretUnavailable(f"the secret aws:{name} is binary, and an option is text")
        return _value(text, field, f"aws:{name}")


class GcpSecretManager(SecretProvider):
    """A secret of Google Secret Manager: `gcp:projects/P/secrets/S`, with `/versions/V` and `#FIELD` where needed.

    Credentials are Google's application default credentials. `GCP_SECRET_MANAGER_URL` has another endpoint, such as
    that of a region.
    """

    def __init__(self) -> None:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests

        self._auth = google.auth
        self._request = google.auth.transport.requests.Request
        self._credentials: Any = None
        # One thread refreshes a token; the others wait for it.
        self._lock = threading.Lock()

    def read(self, reference: str) -> str:
        name, _, field = reference.partition("#")
        parts = name.split("/")
        if len(parts) not in (4, 6) or parts[0] != "projects" or parts[2] != "secrets" or "" in parts:
            raise SecretUnavailable(
                f"gcp:{reference} is not the name of a secret", suggestion="write gcp:projects/PROJECT/secrets/NAME"
            )
        version = name if len(parts) == 6 else f"{name}/versions/latest"
        endpoint = os.environ.get("GCP_SECRET_MANAGER_URL") or "https://secretmanager.googleapis.com"
        headers = {"Authorization": f"Bearer {self._token()}"}
        answer = _get(f"{endpoint.rstrip('/')}/v1/{quote(version)}:access", "Google Secret Manager", headers)
        _require_success(answer, "Google Secret Manager", name)
        payload = _json_object(answer, "Google Secret Manager").get("payload")
        try:
            text = base64.b64decode(payload["data"], validate=True).decode()  # type: ignore[index]
        except (KeyError, TypeError, binascii.Error, UnicodeDecodeError) as error:
            raise SecretUnavailable(f"the secret gcp:{name} is no text") from error
        return _value(text, field, f"gcp:{name}")

    def _token(self) -> str:
        try:
            with self._lock:
                if self._credentials is None:
                    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
                    self._credentials, _ = self._auth.default(scopes=scopes)
                if not self._credentials.valid:
                    self._credentials.refresh(self._request())
                return str(self._credentials.token)
        except self._auth.exceptions.GoogleAuthError as error:
            raise SecretUnavailable(
                f"Google gives no token: {error}",
                suggestion="set GOOGLE_APPLICATION_CREDENTIALS, or give this machine a service account",
            ) from error


def _get(url: str, system: str, headers: dict[str, str], *, verify: str | bool = True) -> httpx2.Response:
    try:
        # Redirects are not followed: the token would go where the answer says.
        return httpx2.get(url, headers=headers, timeout=SECONDS, verify=verify)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise SecretUnavailable(f"{system} at {url} cannot be reached: {error}") from error


def _require_success(answer: httpx2.Response, system: str, name: str) -> None:
    if answer.status_code != 200:
        raise SecretUnavailable(f"{system} answers {answer.status_code} for {name}: {answer.text[:200]!r}")


def _json_object(answer: httpx2.Response, system: str) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SecretUnavailable(f"{system} did not answer with a JSON object")
    return found


def _value(text: str, field: str, name: str) -> str:
    """The text of a secret, or a field of it."""
    if not field:
        return text
    try:
        return _field_of(json.loads(text), field, name)
    except ValueError as error:
        raise SecretUnavailable(f"the secret {name} is no JSON object, so it has no field {field!r}") from error


def _field_of(found: Any, field: str, name: str) -> str:
    if not isinstance(found, dict) or field not in found:
        has = ", ".join(sorted(map(str, found))) if isinstance(found, dict) else "none"
        raise SecretUnavailable(f"the secret {name} has no field {field!r}", suggestion=f"it has {has}")
    value = found[field]
    if not isinstance(value, str):
        raise SecretUnavailable(f"the field {field!r} of {name} is no text")
    return value

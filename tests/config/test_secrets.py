"""Secrets by reference: commands, secret managers, and `secret` in pipeline files; what is said when one is missing."""

import base64
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from http_peer import HttpPeer, PeerAnswer, PeerRequest

import conduit_py
from conduit_py.config.interpolation import Interpolator
from conduit_py.config.load import load_file
from conduit_py.config.python_file import FileInvalid
from conduit_py.redaction import SECRETS, Secrets
from conduit_py.sdk import SecretProvider, SecretUnavailable
from conduit_py.sdk import secrets as secrets_module
from conduit_py.sdk.secrets import LOOK_SECONDS, SIZE_MAX, SecretReader

PIPELINE = """
from conduit_py import Destination, Pipeline, Source, secret
from conduit_connectors import generator, log

password = secret("{reference}")
pipeline = Pipeline(
    "orders", sources=[Source("made", generator.Source(count=1))], destinations=[Destination("kept", log.Destination())]
)
"""


@pytest.fixture(autouse=True)
def fresh_managers() -> Iterator[None]:
    """A provider keeps its connection and its token for the life of a process."""
    secrets_module._manager.cache_clear()
    yield
    secrets_module._manager.cache_clear()


@pytest.fixture
def peer() -> Iterator[HttpPeer]:
    with HttpPeer(lambda request: PeerAnswer({}, 404)).serving() as peer:
        yield peer


def command(folder: Path, text: str) -> str:
    script = folder / "tell"
    script.write_text(f"#!{sys.executable}\n{text}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"exec:{script}"


class TestCommands:
    def test_what_it_prints_is_the_secret_and_masked(self, tmp_path: Path) -> None:
        reference = command(tmp_path, "import sys; print('-'.join(sys.argv[1:]))") + " 'a b' $HOME;ls"

        assert SecretReader(tmp_path).read(reference) == "a b-$HOME;ls"
        assert SECRETS.redact("is a b-$HOME;ls") == "is ***"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("import sys; sys.exit('no such entry')", "gave no secret, but exit code 1: no such entry"),
            ("pass", "is empty"),
            ("import sys; sys.stdout.buffer.write(b'\\xff')", "is not UTF-8 text"),
            (f"print('x' * {SIZE_MAX + 1})", f"is larger than {SIZE_MAX} bytes"),
        ],
    )
    def test_what_gives_no_secret_is_reported(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(SecretUnavailable) as raised:
            SecretReader(tmp_path).read(command(tmp_path, text))

        assert message in str(raised.value)

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("exec:", "names no command"),
            ("exec:/nowhere/tell", "/nowhere/tell cannot be run for a secret: No such file or directory"),
            ("exec:tell 'x", "cannot be split into words"),
        ],
    )
    def test_what_is_no_command_is_reported(self, tmp_path: Path, reference: str, message: str) -> None:
        with pytest.raises(SecretUnavailable, match=message):
            SecretReader(tmp_path).read(reference)

    def test_a_yaml_file_runs_none_unless_the_operator_allows_it(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        reference = command(tmp_path, f"open({str(ran)!r}, 'w'); print('geheim')")
        [problem] = Interpolator(tmp_path, environment={}, secrets=Secrets()).resolve_setting(reference).problems

        assert "a YAML file must not do so by itself" in problem.message
        assert problem.suggestion is not None
        assert "CONDUIT_EXEC_SECRETS=1" in problem.suggestion
        assert not ran.exists()
        allowed = Interpolator(tmp_path, environment={"CONDUIT_EXEC_SECRETS": "1"}, secrets=Secrets())
        assert allowed.resolve_setting(reference).text == "geheim"


class TestPipelineFiles:
    def test_read_beside_the_file_and_a_rotation_is_seen(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("first-one\n")
        file = tmp_path / "orders.py"
        file.write_text(PIPELINE.format(reference="file:./token"))
        [loaded] = load_file(file).pipelines
        [reading] = loaded.secrets

        assert reading.where == str(tmp_path / "token")
        assert SECRETS.redact("first-one") == "***"
        assert not reading.rotated()
        (tmp_path / "token").write_text("second-one\n")
        assert reading.rotated()

    def test_a_missing_secret_names_the_line_and_what_to_do(self, tmp_path: Path) -> None:
        file = tmp_path / "orders.py"
        file.write_text(PIPELINE.format(reference="env:CONDUIT_NOT_SET"))
        with pytest.raises(FileInvalid) as raised:
            load_file(file)

        [problem] = raised.value.problems
        assert problem.message == "the environment variable CONDUIT_NOT_SET is not set"
        assert (problem.suggestion, problem.line) == ("set it", 5)

    def test_secret_works_outside_of_them_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "token").write_text("of-a-notebook")
        monkeypatch.chdir(tmp_path)

        assert conduit_py.secret("file:./token") == "of-a-notebook"

    def test_what_nobody_provides_is_reported_with_what_there_is(self) -> None:
        with pytest.raises(SecretUnavailable, match="there is no provider of secrets 'valt'") as raised:
            conduit_py.secret("valt:x")

        assert raised.value.suggestion == "there are aws, env, exec, file, gcp, vault"


class TestManagers:
    """What is common to them: they are asked seldom, and an outage is no rotation."""

    def test_a_rotation_is_seen_after_a_minute_and_an_outage_is_none(self) -> None:
        now, answers = [0.0], iter(["first", "first", SecretUnavailable("down"), KeyError("broken"), "second"])

        class Manager(SecretProvider):
            def read(self, reference: str) -> str:
                answer = next(answers)
                if isinstance(answer, Exception):
                    raise answer
                return str(answer)

        reader = SecretReader(Path(), manager=lambda prefix: Manager(), clock=lambda: now[0])
        reader.read("vault:x#y")
        [reading] = reader.readings.values()
        looks = []
        for minute in (0, 0.5, 1, 2, 3, 4, 4.5):
            now[0] = minute * LOOK_SECONDS
            looks.append(reading.rotated())

        assert looks == [False, False, False, False, False, True, True]
        assert reading.where == "vault:x#y"

    def test_a_provider_that_fails_otherwise_is_reported(self) -> None:
        reader = SecretReader(Path(), manager=lambda prefix: SecretProvider())
        with pytest.raises(SecretUnavailable, match="the secret vault:x cannot be read: NotImplementedError"):
            reader.read("vault:x")


class TestVault:
    @pytest.fixture(autouse=True)
    def vault(self, peer: HttpPeer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("VAULT_ADDR", peer.url + "/")
        monkeypatch.setenv("VAULT_TOKEN_FILE", str(tmp_path / "token"))
        (tmp_path / "token").write_text("hvs.renewed\n")
        peer.respond = self.answer

    def answer(self, request: PeerRequest) -> PeerAnswer:
        fields = {"password": "from-vault", "port": 5432}
        if request.headers["x-vault-token"] != "hvs.renewed":
            return PeerAnswer({"errors": ["permission denied"]}, 403)
        return {
            "/v1/secret/data/orders": PeerAnswer({"data": {"data": fields, "metadata": {"version": 3}}}),
            "/v1/kv/a%20b": PeerAnswer({"data": fields}),
            "/v1/sealed": PeerAnswer({"errors": ["Vault is sealed"]}, 503),
            "/v1/page": PeerAnswer(b"<html>"),
        }.get(request.path, PeerAnswer({"errors": []}, 404))

    @pytest.mark.parametrize("reference", ["secret/data/orders#password", "kv/a b#password"])
    def test_fields_of_both_versions_of_its_engine(self, reference: str) -> None:
        assert conduit_py.secret(f"vault:{reference}") == "from-vault"
        assert SECRETS.redact("from-vault") == "***"

    @pytest.mark.parametrize(
        ("reference", "message", "suggestion"),
        [
            ("secret/data/orders", "does not name a path and a field", "write vault:secret/data/orders#password"),
            ("secret/orders#password", "Vault has no secret at secret/orders", "MOUNT/data/PATH"),
            ("secret/data/orders#user", "has no field 'user'", "it has password, port"),
            ("secret/data/orders#port", "the field 'port' of vault:secret/data/orders is no text", None),
            ("sealed#x", "Vault answers 503 for sealed: .*Vault is sealed", None),
            ("page#x", "did not answer with a JSON object", None),
        ],
    )
    def test_what_is_missing_is_reported(self, reference: str, message: str, suggestion: str | None) -> None:
        with pytest.raises(SecretUnavailable, match=message) as raised:
            conduit_py.secret(f"vault:{reference}")

        assert raised.value.suggestion is suggestion or str(suggestion) in str(raised.value.suggestion)

    def test_a_token_that_may_not_and_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "token").unlink()
        with pytest.raises(SecretUnavailable, match="there is no token for Vault"):
            conduit_py.secret("vault:secret/data/orders#password")
        monkeypatch.setenv("VAULT_TOKEN", "hvs.other")
        with pytest.raises(SecretUnavailable, match="does not allow this token to read secret/data/orders"):
            conduit_py.secret("vault:secret/data/orders#password")

    def test_a_server_that_is_away_and_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
        with pytest.raises(SecretUnavailable, match=r"Vault at http://127\.0\.0\.1:1/v1/x cannot be reached"):
            conduit_py.secret("vault:x#y")
        monkeypatch.delenv("VAULT_ADDR")
        with pytest.raises(SecretUnavailable, match="VAULT_ADDR is not set"):
            conduit_py.secret("vault:x#y")


class TestAws:
    @pytest.fixture(autouse=True)
    def aws(self, moto_server: str, monkeypatch: pytest.MonkeyPatch, queue_name: str) -> str:
        for name, value in {"ENDPOINT_URL": moto_server, "DEFAULT_REGION": "eu-west-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "two")
        client = boto3.client("secretsmanager")
        client.create_secret(Name=queue_name, SecretString=json.dumps({"password": "from-aws"}))
        client.create_secret(Name=f"{queue_name}/plain", SecretString="plain-aws")
        client.create_secret(Name=f"{queue_name}/bytes", SecretBinary=b"\x00")
        return queue_name

    def test_texts_and_fields(self, aws: str) -> None:
        assert conduit_py.secret(f"aws:{aws}#password") == "from-aws"
        assert conduit_py.secret(f"aws:{aws}/plain") == "plain-aws"

    def test_what_is_missing_is_reported(self, aws: str) -> None:
        for reference, message in {
            "nothing": "AWS does not give the secret nothing: ResourceNotFoundException",
            f"{aws}#user": "has no field 'user'",
            f"{aws}/plain#user": "is no JSON object, so it has no field 'user'",
            f"{aws}/bytes": "is binary, and an option is text",
        }.items():
            with pytest.raises(SecretUnavailable, match=message):
                conduit_py.secret(f"aws:{reference}")

    def test_a_machine_without_a_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        with pytest.raises(SecretUnavailable, match="cannot be asked for x") as raised:
            conduit_py.secret("aws:x")

        assert "AWS_REGION" in str(raised.value.suggestion)


class TestGcp:
    @pytest.fixture(autouse=True)
    def gcp(self, peer: HttpPeer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "client_email": "conduit@example.com",
            "private_key": pem.decode(),
            "token_uri": f"{peer.url}/token",
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        monkeypatch.setenv("GCP_SECRET_MANAGER_URL", peer.url)
        peer.respond = self.answer

    def answer(self, request: PeerRequest) -> PeerAnswer:
        if request.path == "/token":
            return PeerAnswer({"access_token": "ya29", "expires_in": 3600, "token_type": "Bearer"})
        if request.headers.get("authorization") != "Bearer ya29":
            return PeerAnswer({"error": {"status": "UNAUTHENTICATED"}}, 401)
        contents = {
            "/v1/projects/p/secrets/plain/versions/latest:access": b"from-gcp",
            "/v1/projects/p/secrets/db/versions/7:access": b'{"password": "field-gcp"}',
            "/v1/projects/p/secrets/bytes/versions/latest:access": b"\xff",
        }
        if request.path not in contents:
            return PeerAnswer({"error": {"status": "NOT_FOUND"}}, 404)
        return PeerAnswer({"payload": {"data": base64.b64encode(contents[request.path]).decode()}})

    def test_texts_fields_and_versions_with_one_token(self, peer: HttpPeer) -> None:
        assert conduit_py.secret("gcp:projects/p/secrets/plain") == "from-gcp"
        assert conduit_py.secret("gcp:projects/p/secrets/db/versions/7#password") == "field-gcp"
        assert [request.path for request in peer.requests].count("/token") == 1

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("p/plain", "is not the name of a secret"),
            ("projects/p/secrets/none", "answers 404 for projects/p/secrets/none: .*NOT_FOUND"),
            ("projects/p/secrets/bytes", "the secret gcp:projects/p/secrets/bytes is no text"),
        ],
    )
    def test_what_is_missing_is_reported(self, reference: str, message: str) -> None:
        with pytest.raises(SecretUnavailable, match=message):
            conduit_py.secret(f"gcp:{reference}")

    def test_without_a_token(self, peer: HttpPeer) -> None:
        peer.respond = lambda request: PeerAnswer({"error": "invalid_grant"}, 400)
        with pytest.raises(SecretUnavailable, match=r"Google gives no token: .*invalid_grant"):
            conduit_py.secret("gcp:projects/p/secrets/plain")

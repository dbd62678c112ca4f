"""MariaDB behind TLS: a certificate that is trusted is enough, and any other ends in an error that says what to do."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import mysql as connector
from conduit_connectors.mysql.address import connect
from mariadb_changes import open_reader, replica_of, run_sql

from conduit_py.sdk import FatalError
from conduit_py.testing.services import MariaDbServer


def make_certificate(path: Path) -> Path:
    """Make a certificate for 127.0.0.1, which is its own authority, with its key in the same file."""
    to = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", *to]
    subprocess.run(command, check=True, capture_output=True)
    # The server may run as another user, who reads its key.
    path.chmod(0o644)
    return path


class GuardedMariaDb(MariaDbServer):
    """A server with a certificate."""

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    def run(self, command: Sequence[str], **options: Any) -> None:
        make_certificate(self.certificate)
        super().run([*command, f"--ssl-cert={self.certificate}", f"--ssl-key={self.certificate}"], **options)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedMariaDb]:
    with GuardedMariaDb.started() as server:
        server.execute("CREATE USER guarded@'%' REQUIRE SSL; GRANT ALL ON *.* TO guarded@'%'")
        yield server


@pytest.fixture
def url(guarded: GuardedMariaDb) -> str:
    return guarded.create_database().replace("tester@", "guarded@")


async def test_changes_are_read_from_a_server_whose_certificate_is_trusted(url: str, guarded: GuardedMariaDb) -> None:
    """The user may not connect without encryption, so the stream is encrypted too."""
    trusted = f"{url}?ssl_ca={guarded.certificate}"
    run_sql(trusted, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")

    async with open_reader(connector.Source(url=trusted, server_id=replica_of(url), tables=["t"])) as reader:
        rows = await reader.take(1)
        run_sql(trusted, "INSERT INTO t VALUES (2)")
        rows += await reader.take(1)

    assert [row.key for row in rows] == [{"id": 1}, {"id": 2}]
    assert run_sql(trusted, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]


async def test_a_certificate_of_another_authority_is_refused(url: str, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other.pem")
    source = connector.Source(url=f"{url}?ssl_ca={other}", server_id=replica_of(url), tables=["t"])

    with pytest.raises(FatalError, match=r"(?i)certificate.*verify failed") as refused:
        async with open_reader(source):
            pass

    assert refused.value.suggestion == "check ssl_ca and the host in `url`, and the certificate of the server"


def test_a_certificate_for_another_host_is_refused_unless_only_its_authority_is_checked(
    url: str, guarded: GuardedMariaDb
) -> None:
    elsewhere = f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca={guarded.certificate}"
    with pytest.raises(FatalError, match=r"(?i)certificate") as refused:
        connect(elsewhere)
    connect(f"{elsewhere}&ssl_mode=verify_ca").close()

    assert "localhost" in str(refused.value)


@pytest.mark.parametrize("mode", ["disabled", "verify_identity"])
def test_a_user_who_needs_encryption_is_refused_without_it_or_without_trust(url: str, mode: str) -> None:
    with pytest.raises(FatalError):
        connect(f"{url}?ssl_mode={mode}")
    connect(f"{url}?ssl_mode=required").close()

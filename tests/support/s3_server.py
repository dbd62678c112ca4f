"""A real S3 service for tests: SeaweedFS on loopback, one for each worker of pytest-xdist that needs it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from queue_servers import beside_python

from conduit_py.testing.server_process import ServerProcess, free_port

ACCESS_KEY, SECRET_KEY = "tester", "not-a-secret"
PARTS = ("master", "volume", "filer", "s3")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the service, for the keys above."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    keys = folder / "keys.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    keys.write_text(json.dumps({"identities": [{"name": "tester", "credentials": credentials, "actions": ["Admin"]}]}))
    server = ServerProcess(folder / "log")
    ports = {f"{part}.port{kind}": free_port() for part in PARTS for kind in ("", ".grpc")}
    ports |= {"s3.port": server.port, "s3.port.iceberg": 0, "s3.port.lance": 0}
    address = f"http://127.0.0.1:{server.port}"
    server.run(
        [
            beside_python("weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-filer", "-s3",
            f"-s3.config={keys}", "-volume.max=200", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in ports.items()),
        ],
        answers=lambda: _answers(address),
    )  # fmt: skip
    yield address
    server.stop()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 403  # it wants keys, so it works
    except OSError:
        return False
    return True

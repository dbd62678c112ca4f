"""A real S3 service for tests: SeaweedFS on loopback, one for each worker of pytest-xdist that needs it."""

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import boto3
import pytest
from queue_servers import beside_python

from conduit_py.testing.server_process import ServerProcess, free_port

ACCESS_KEY, SECRET_KEY = "tester", "not-a-secret"
PARTS = ("master", "volume", "filer", "s3")


class S3Services(NamedTuple):
    """The addresses of the service, for the keys above: of objects, and of its Iceberg catalog."""

    objects: str
    catalog: str


@pytest.fixture(scope="session")
def s3_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Services]:
    folder = tmp_path_factory.mktemp("seaweedfs")
    keys = folder / "keys.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    keys.write_text(json.dumps({"identities": [{"name": "tester", "credentials": credentials, "actions": ["Admin"]}]}))
    server = ServerProcess(folder / "log")
    ports = {f"{part}.port{kind}": free_port() for part in PARTS for kind in ("", ".grpc")}
    catalog_port = free_port()
    ports |= {"s3.port": server.port, "s3.port.iceberg": catalog_port, "s3.port.lance": 0}
    address = f"http://127.0.0.1:{server.port}"
    server.run(
        [
            beside_python("weed"),
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={folder}",
            "-filer",
            "-s3",
            f"-s3.config={keys}",
            "-volume.max=200",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in ports.items()),
        ],
        answers=lambda: _answers(address),
    )
    yield S3Services(address, f"http://127.0.0.1:{catalog_port}")
    server.stop()


@pytest.fixture(scope="session")
def s3_server(s3_services: S3Services) -> str:
    return s3_services.objects


@pytest.fixture(scope="session")
def rest_catalog(s3_services: S3Services) -> dict[str, str]:
    """The properties of a catalog behind REST, whose tables are objects of the service."""
    client: Any = boto3.client(
        "s3tables",
        endpoint_url=s3_services.objects,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )
    client.create_table_bucket(name="lake")
    return {
        "type": "rest", "uri": s3_services.catalog, "warehouse": "s3://lake",
        "credential": f"{ACCESS_KEY}:{SECRET_KEY}", "s3.endpoint": s3_services.objects,
        "s3.region": "us-east-1", "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY,
    }  # fmt: skip


class BucketFolder:
    """A folder of a bucket. All tests share the bucket: each takes volumes of the service, which are few."""

    def __init__(self, address: str) -> None:
        self.root = f"s3://objects/{secrets.token_hex(4)}"
        self._prefix = self.root.removeprefix("s3://objects/") + "/"
        self.options: dict[str, Any] = {
            "s3_endpoint": address, "s3_region": "us-east-1", "s3_access_key": ACCESS_KEY, "s3_secret_key": SECRET_KEY,
        }  # fmt: skip
        """The options of the connectors of objects."""
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )
        with suppress(self._client.exceptions.BucketAlreadyOwnedByYou, self._client.exceptions.BucketAlreadyExists):
            self._client.create_bucket(Bucket="objects")

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket="objects", Key=self._prefix + key, Body=content)

    def get(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket="objects", Key=self._prefix + key)["Body"].read())

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket="objects", Key=self._prefix + key)

    def keys(self, prefix: str = "") -> list[str]:
        found = self._client.list_objects_v2(Bucket="objects", Prefix=self._prefix + prefix).get("Contents", [])
        return [each["Key"].removeprefix(self._prefix) for each in found]


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 403  # it wants keys, so it works
    except OSError:
        return False
    return True

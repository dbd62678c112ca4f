"""A schema registry that is down, slow, closed or hostile: records wait for it, and none is refused for its sake."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from builders import batch_of
from conduit_connectors import memory
from conduit_processors import avro
from conduit_processors.registry import processors
from conduit_processors.registry.client import REFERENCES_MAX
from registry_calls import open_processor, process
from scripted_registry import Answer, scripted_registry
from waiting import until

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    RecordRefused,
    Recovery,
    Source,
    Status,
    run_async,
    running,
)
from conduit_py.sdk import FatalError, TransientError
from conduit_py.testing.server_process import free_port
from conduit_py.testing.services import RegistryServer

LONG = {"schema": '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'}
DATA = b"\x00\x00\x00\x00\x07\x02"
UNAVAILABLE: Answer = (503, b"down for maintenance")


async def decode(url: str, *data: Any, **options: Any) -> list[Any]:
    return await process(avro.Decode(url=url, **options), *data)


async def test_a_registry_that_is_down_for_a_moment_holds_the_records_back() -> None:
    answers: dict[str, Any] = {"/schemas/ids/7": [UNAVAILABLE, (500, {"error_code": 50001}), (429, b""), (200, LONG)]}
    async with scripted_registry(answers) as registry:
        [result] = await decode(registry.url, DATA)

    assert result.payload.after == {"n": 1}
    assert len(registry.requests) == 4


@pytest.mark.parametrize("answer", [UNAVAILABLE, None])
async def test_a_registry_that_stays_down_is_a_transient_error_and_no_refusal(answer: Answer | None) -> None:
    async with scripted_registry({"/schemas/ids/7": answer or (200, LONG)}) as registry:
        url = registry.url if answer else f"http://127.0.0.1:{free_port()}"
        with pytest.raises(TransientError, match=f"the schema registry at {url} ") as caught:
            await decode(url, DATA, retry_seconds=0.2)

    assert caught.value.suggestion == "check the url and that the registry runs"


async def test_a_registry_that_never_answers_is_a_transient_error() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"

    with pytest.raises(TransientError, match=r"did not answer within 0\.1 s|cannot be reached"):
        await decode(url, DATA, timeout_seconds=0.1, retry_seconds=0)


async def test_a_pipeline_waits_for_its_registry_and_loses_and_refuses_nothing() -> None:
    subject = {"id": 7, "subject": "numbers", "version": 1} | LONG
    numbers = {"/subjects/numbers/versions/latest": [UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, (200, subject)]}
    written: list[Record] = []
    async with scripted_registry(numbers) as registry:
        encode = avro.Encode(url=registry.url, subject="numbers", retry_seconds=0)
        pipeline = Pipeline(
            "p",
            sources=[Source("numbers", memory.Source(records=[Record.of({"n": 1}), Record.of({"n": 2})]))],
            processors=[Processor("encode", encode)],
            destinations=[Destination("lake", memory.Destination(into=written))],
            dead_letters=DeadLetters.keep(),
            recovery=Recovery(delay_seconds=0.01, delay_max_seconds=0.02),
        )
        outcome = await run_async(pipeline)

    assert (outcome.status, outcome.counts.dead_letters, outcome.counts.recoveries) == (Status.COMPLETED, 0, 3)
    assert [record.payload.after for record in written] == [DATA, DATA[:-1] + b"\x04"]


async def test_records_wait_for_a_registry_that_was_killed_until_it_is_back(own_registry: RegistryServer) -> None:
    records: list[Any] = [{"topic": "first"}]
    written: list[Record] = []
    # Each topic has a subject of its own, so the second record needs the registry.
    topic = "{{ .Payload.After.topic }}"
    encode = avro.Encode(url=own_registry.url, strategy="autoRegister", topic=topic, retry_seconds=0)
    pipeline = Pipeline(
        "p",
        sources=[Source("topics", memory.Source(records=records, bounded=False))],
        processors=[Processor("encode", encode)],
        destinations=[Destination("lake", memory.Destination(into=written))],
        dead_letters=DeadLetters.keep(),
        recovery=Recovery(delay_seconds=0.1, delay_max_seconds=0.2),
    )
    async with running(pipeline) as handle:
        await until(lambda: len(written) == 1)
        own_registry.kill()
        records.append({"topic": "second"})
        await until(lambda: handle.status is Status.RECOVERING)
        await trio.to_thread.run_sync(own_registry.start)
        await until(lambda: len(written) == 2)
        handle.stop()
        outcome = await handle.wait()

    assert (outcome.counts.acked, outcome.counts.dead_letters) == (2, 0)
    assert [record.payload.after[-6:] for record in written if isinstance(record.payload.after, bytes)] == [
        b"\x0afirst",
        b"second",
    ]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_registry_that_refuses_access_stops_the_pipeline_without_a_secret_in_the_error(status: int) -> None:
    async with scripted_registry({"/schemas/ids/7": (status, b"")}) as registry:
        with pytest.raises(FatalError, match="refuses access") as caught:
            await decode(registry.url, DATA, username="ada", password="hunter22")

    assert "hunter22" not in str(caught.value)
    assert registry.requests[0][1]["authorization"] == "Basic YWRhOmh1bnRlcjIy"


async def test_a_token_is_sent_as_bearer() -> None:
    async with scripted_registry({"/schemas/ids/7": (200, LONG)}) as registry:
        await decode(registry.url, DATA, token="t0ken")

    assert registry.requests[0][1]["authorization"] == "Bearer t0ken"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, which is its own authority, and its key."""
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


async def test_tls_takes_the_authority_and_the_certificate_of_the_options(certificate: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    tls.load_cert_chain(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with scripted_registry({"/schemas/ids/7": (200, LONG)}, tls) as registry:
        client = {"ca_file": certificate, "cert_file": certificate, "key_file": certificate}
        [decoded] = await decode(registry.url, DATA, **client)

    assert decoded.payload.after == {"n": 1}


async def test_a_certificate_that_nobody_trusts_stops_the_pipeline(certificate: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with scripted_registry({"/schemas/ids/7": (200, LONG)}, tls) as registry:
        with pytest.raises(FatalError, match="is not trusted: self-signed certificate"):
            await decode(registry.url, DATA)
        with pytest.raises(FatalError, match=r"the certificates for .* cannot be used"):
            await decode(registry.url, DATA, ca_file=certificate.parent / "missing.pem")


@pytest.mark.parametrize("answer", [(404, b"<html>"), (302, b""), (200, b"<html>"), (400, {"error_code": 400})])
async def test_something_else_at_the_address_stops_the_pipeline(answer: Answer) -> None:
    async with scripted_registry({"/schemas/ids/7": answer}) as registry:
        with pytest.raises(FatalError, match="is no schema registry"):
            await decode(registry.url, DATA)


def reference(name: str) -> dict[str, Any]:
    return {"name": name, "subject": name, "version": 1}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"schema": " " * 3_000_000}, "has more than 2097152 bytes"),
        ({"schema": 7}, "the registry's answer has no schema"),
        ([], "the registry's answer has no schema"),
        ({"schema": "{nope"}, "schema 7 cannot be used: the schema: not valid JSON"),
        ({"schema": "[" * 5000}, "schema 7 cannot be used: the schema: "),
        ({"schema": '{"type": "record", "name": "r", "fields": [{"name": "r", "type": "r"}]}'}, "without end"),
        ({"schema": "{}", "schemaType": "JSON"}, "schema 7 is of the type JSON, not AVRO"),
        (LONG | {"references": [reference("ring")]}, "its references form a ring: ring → ring"),
        (LONG | {"references": [reference(f"leaf{n}") for n in range(200)]}, f"more than {REFERENCES_MAX} schemas"),
        (LONG | {"references": [{"name": "x"}]}, "references of another form"),
        (LONG | {"references": 7}, "references of another form"),
    ],
)
async def test_a_schema_that_cannot_be_used_refuses_its_records_alone(answer: Any, message: str) -> None:
    ring = LONG | {"references": [reference("ring")]}
    answers: dict[str, Any] = {"/schemas/ids/7": (200, answer), "/schemas/ids/8": (200, LONG)}
    answers |= {"/subjects/ring/versions/1": (200, ring)}
    answers |= {f"/subjects/leaf{n}/versions/1": (200, LONG) for n in range(200)}
    async with scripted_registry(answers) as registry:
        refused, decoded, again = await decode(registry.url, DATA, b"\x00\x00\x00\x00\x08\x02", DATA)

    assert isinstance(refused, RecordRefused)
    assert message in refused.message
    assert decoded.payload.after == {"n": 1}
    assert isinstance(again, RecordRefused)
    # The second time nobody asked: a flood of such records must not become one of requests.
    assert [path for path, _ in registry.requests].count("/schemas/ids/7") == 1


async def test_a_schema_is_asked_for_once_and_few_are_kept() -> None:
    answers: dict[str, Any] = {f"/schemas/ids/{n}": (200, LONG) for n in range(520)}
    many = [b"\x00" + n.to_bytes(4, "big") + b"\x02" for n in range(520)]
    async with scripted_registry(answers) as registry, open_processor(avro.Decode(url=registry.url)) as processor:
        await processor.process_batch(batch_of(*[DATA] * 500))
        once = len(registry.requests)
        results = await processor.process_batch(batch_of(*many))

        assert once == 1
        assert all(isinstance(result, Record) for result in results)
        assert len(processor._codecs) == processors.CODECS_MAX


async def test_subjects_that_a_record_decides_stay_one_part_of_the_path() -> None:
    async with scripted_registry({}) as registry:
        encode = avro.Encode(url=registry.url, topic="{{ .Payload.After.t }}")
        async with open_processor(encode) as processor:
            [refused] = await processor.process_batch(batch_of({"t": "../../config?x=\ud800#"}))

    assert isinstance(refused, RecordRefused)
    assert [path for path, _ in registry.requests] == ["/subjects/..%2F..%2Fconfig%3Fx%3D%3F%23-value/versions/latest"]


def test_options_that_do_not_go_together_are_problems() -> None:
    def problem(**options: Any) -> str:
        [found] = avro.Encode(**{"url": "http://localhost", **options}).problems
        return found.message

    assert "must be the address of a registry" in problem(url="localhost:8081")
    assert "must not contain a password" in problem(url="http://a:b@localhost")
    assert problem(username="a") == "basic authentication needs username and password"
    assert "not by both" in problem(username="a", password="b", token="c")
    assert problem(cert_file="c.pem") == "a client's certificate needs cert_file and key_file"
    assert "needs the name of the record" in problem(subject_strategy="record")
    assert "version is for a schema of the registry" in problem(strategy="autoRegister", version=1)
    assert "references are those of the schema in schema_file" in problem(references=[reference("x")])

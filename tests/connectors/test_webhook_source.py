"""The webhook source: answers when records are durable, drops repeats, checks signatures, and limits its clients."""

import hashlib
import hmac
import http.client
import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import httpx2
import pytest
import trio
from conduit_connectors import webhook
from conduit_connectors.webhook.delivered_keys import DeliveredKeys, hash_key
from conduit_connectors.webhook.signature import signature_error
from http_peer import free_port

from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, DestinationConnector, EndOfSource, FatalError, Options, Record, TransientError
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import source_acceptance

SECRET = "s3cret-of-the-sender"


def sign(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}


def repeating_sender(port: int, body: bytes) -> Iterator[None]:
    """Send one array again and again, as a sender does that is never answered 200."""
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5)
            try:
                connection.request("POST", "/", body)
                connection.getresponse().read()
            except OSError:
                time.sleep(0.005)
            finally:
                connection.close()

    thread = threading.Thread(target=send)
    thread.start()
    yield
    ended.set()
    thread.join()


def received() -> Iterator[webhook.Source]:
    port = free_port()
    sending = repeating_sender(port, json.dumps([{"id": n} for n in range(5)]).encode())
    next(sending)
    yield webhook.Source(listen=f"127.0.0.1:{port}", body="array", key_path="id")
    next(sending, None)


TestAcceptance = source_acceptance(received, records=5)


class Opened:
    """A source at work, with the pipeline played by the test, and a client."""

    def __init__(self, position: bytes | None, **options: Any) -> None:
        port = free_port()
        self.source = webhook.Source(listen=f"127.0.0.1:{port}", **options)
        self.url = f"http://127.0.0.1:{port}/"
        self.position = position

    async def __aenter__(self) -> "Opened":
        await self.source.open(self.position)
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        self.nursery.start_soon(self.source.background)
        self.http = httpx2.AsyncClient(timeout=60)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.nursery.cancel_scope.cancel()
        await self._manager.__aexit__(*error)
        await self.source.teardown()
        await self.http.aclose()

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(self.url, content=content, headers=named)

    async def deliver(self, body: Any, **headers: str) -> tuple[httpx2.Response, list[Record]]:
        """Send a request, read its records, make them durable; its answer, and the records."""
        records: list[Record] = []

        async def pipeline() -> None:
            while True:
                records.extend(await self.source.read(10))
                await self.source.ack([records[-1].position])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipeline)
            answer = await self.post(body, **headers)
            nursery.cancel_scope.cancel()
        return answer, records


async def test_a_request_is_answered_when_its_records_are_durable_and_not_before() -> None:
    async with Opened(None, body="array") as opened, trio.open_nursery() as nursery:
        answers: list[httpx2.Response] = []

        async def send() -> None:
            answers.append(await opened.post([{"n": 1}, {"n": 2}, {"n": 3}]))

        nursery.start_soon(send)
        records = await opened.source.read(10)
        await opened.source.ack([records[0].position, records[1].position])
        # The client waits for all of them: the pipeline has one more to do.
        await trio.testing.wait_all_tasks_blocked(0.05)
        waits = not answers
        await opened.source.ack([records[2].position])

    assert waits
    assert [each.payload.after for each in records] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (answers[0].status_code, answers[0].json()) == (200, {"accepted": 3, "repeated": 0})


async def test_repeats_are_dropped_by_key_also_after_a_restart() -> None:
    async with Opened(None, key_header="Idempotency-Key", keys_max=2) as opened:
        first, records = await opened.deliver({"n": 1}, Idempotency_Key="a")
        again, none = await opened.deliver({"n": 1}, Idempotency_Key="a")
        _, more = await opened.deliver({"n": 2}, Idempotency_Key="b")
        without = await opened.post({"n": 3})
    async with Opened(more[-1].position, key_header="Idempotency-Key", keys_max=2) as opened:
        later, nothing = await opened.deliver({"n": 1}, Idempotency_Key="a")
        await opened.deliver({"n": 3}, Idempotency_Key="c")
        _, forgotten = await opened.deliver({"n": 1}, Idempotency_Key="a")

    assert (first.json(), again.json()) == ({"accepted": 1, "repeated": 0}, {"accepted": 0, "repeated": 1})
    assert records[0].key == b"a"
    assert (none, nothing, later.json()) == ([], [], {"accepted": 0, "repeated": 1})
    assert (without.status_code, without.json()) == (400, {"error": "there is no header Idempotency-Key"})
    # Only the last two are remembered.
    assert len(forgotten) == 1


async def test_a_repeat_of_what_is_on_its_way_waits_for_the_same_record() -> None:
    async with Opened(None, key_path="id") as opened, trio.open_nursery() as nursery:
        statuses: list[int] = []

        async def send() -> None:
            statuses.append((await opened.post({"id": 7})).status_code)

        nursery.start_soon(send)
        (record,) = await opened.source.read(10)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.05)
        waits = not statuses
        await opened.source.ack([record.position])

    assert waits
    assert statuses == [200, 200]
    assert not opened.source._ready


async def test_what_is_not_durable_in_time_or_before_the_end_is_answered_503() -> None:
    answers: list[httpx2.Response] = []
    async with Opened(None, answer_seconds=0.05, waiting_max=1) as opened:
        answers.append(await opened.post({"n": 1}))
    async with Opened(None, waiting_max=1) as opened, trio.open_nursery() as nursery:

        async def send() -> None:
            answers.append(await opened.post({"n": 1}))

        nursery.start_soon(send)
        await opened.source.read(1)
        answers.append(await opened.post({"n": 2}))
        await opened.source.stop()
        answers.append(await opened.post({"n": 3}))
        with pytest.raises(EndOfSource):
            await opened.source.read(1)
        opened.nursery.cancel_scope.cancel()

    assert [each.status_code for each in answers] == [503] * 4
    assert {each.headers["retry-after"] for each in answers} == {"5"}
    reasons = [each.json()["error"] for each in answers]
    assert reasons[:2] == ["the records are not durable yet", "too many requests wait here"]
    assert reasons[2:] == ["the source is stopping", "the source has stopped"]


@pytest.mark.parametrize(
    ("options", "body", "status", "error"),
    [
        ({}, b"nonsense", 400, "not valid JSON"),
        ({}, b"[]", 400, "must be an object"),
        ({"body": "array"}, b'{"a": 1}', 400, "an array of objects"),
        ({"body": "array"}, b"[1]", 400, "an array of objects"),
        ({"body": "array"}, [{}] * 1001, 400, "more than 1000 records"),
        ({"key_path": "id"}, {"id": None}, 400, "record 0 has no text or number at 'id'"),
        ({"body_size_max": 10}, b"x" * 11, 413, "longer than 10 bytes"),
        ({"secret": SECRET}, {"n": 1}, 401, "no header X-Hub-Signature-256"),
    ],
)
async def test_what_cannot_be_taken_is_refused(options: dict[str, Any], body: Any, status: int, error: str) -> None:
    async with Opened(None, **options) as opened:
        answer = await opened.post(body)

    assert answer.status_code == status
    assert error in answer.json()["error"]


async def test_chunks_that_never_end_a_wrong_path_and_other_methods_are_refused() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 1000

    async with Opened(None, body_size_max=5000) as opened:
        endless_answer = await opened.http.post(opened.url, content=endless())
        statuses = [
            (await opened.http.get(opened.url)).status_code,
            (await opened.http.post(opened.url + "other", content=b"{}")).status_code,
        ]

    assert endless_answer.status_code == 413
    assert statuses == [405, 404]


async def test_headers_are_kept_and_raw_bodies_are_bytes() -> None:
    async with Opened(None, body="raw", secret=SECRET, keep_headers=["X-Event"]) as opened:
        answer, (record,) = await opened.deliver(b"\x00raw", X_Event="push", **sign(b"\x00raw"))

    assert answer.status_code == 200
    assert record.payload.after == b"\x00raw"
    assert record.metadata == {"webhook.header.x-event": "push"}


class Failing(DestinationConnector[Options]):
    """Cannot be reached the first time."""

    written: ClassVar[list[Any]] = []
    failures: ClassVar[list[str]] = ["the disk is full"]

    async def write(self, batch: Batch) -> None:
        if self.failures:
            raise TransientError(self.failures.pop())
        self.written.extend(record.payload.after for record in batch)


async def test_a_run_that_fails_answers_503_and_the_next_one_takes_the_repeat() -> None:
    port = free_port()
    pipeline = Pipeline(
        "p",
        sources=[Source("hook", webhook.Source(listen=f"127.0.0.1:{port}", key_path="id"))],
        destinations=[Destination("out", Failing())],
    )
    supervisor = Supervisor(pipeline, MemoryStore(), recovery=Recovery(delay_seconds=0.01, retries=None))
    statuses: list[int] = []
    async with trio.open_nursery() as nursery, httpx2.AsyncClient(timeout=60) as client:
        nursery.start_soon(supervisor.run)
        with trio.fail_after(60):
            while not statuses or statuses[-1] != 200:
                with suppress(httpx2.TransportError):
                    answer = await client.post(f"http://127.0.0.1:{port}/", content=b'{"id": 1}')
                    statuses.append(answer.status_code)
                await trio.sleep(0.01)
        supervisor.stop()

    assert statuses[0] == 503
    assert set(statuses) == {503, 200}
    assert Failing.written == [{"id": 1}]


STRIPE = {"secret": SECRET, "signature_style": "stripe", "signature_header": "Stripe-Signature"}
SLACK = {
    "secret": SECRET, "signature_header": "X-Slack-Signature", "signature_prefix": "v0=",
    "timestamp_header": "X-Slack-Request-Timestamp", "signed_text": "v0:{timestamp}:{body}",
}  # fmt: skip


def made(text: bytes, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), text, algorithm).hexdigest()


@pytest.mark.parametrize(
    ("options", "headers", "error"),
    [
        ({"secret": SECRET}, {"x-hub-signature-256": f"sha256={made(b'body')}"}, None),
        ({"secret": SECRET}, {"x-hub-signature-256": f"sha256={made(b'other')}"}, "does not fit"),
        ({"secret": SECRET}, {"x-hub-signature-256": made(b"body")}, "does not fit"),
        ({"secret": SECRET}, {"x-hub-signature-256": "sha256=é"}, "no header"),
        ({"secret": "new-secret", "previous_secret": SECRET}, {"x-hub-signature-256": f"sha256={made(b'body')}"}, None),
        (STRIPE, {"stripe-signature": f"t=1000,v1=bad,v1={made(b'1000.body')}"}, None),
        (STRIPE, {"stripe-signature": f"t=1,v1={made(b'1.body')}"}, "more than 300 s"),
        (STRIPE, {"stripe-signature": f"v1={made(b'.body')}"}, "the time of the signature is missing"),
        (SLACK, {"x-slack-signature": f"v0={made(b'v0:1000:body')}", "x-slack-request-timestamp": "1000"}, None),
        (SLACK, {"x-slack-signature": f"v0={made(b'v0:1000:body')}"}, "the time of the signature is missing"),
        ({}, {}, None),
    ],
)
def test_signatures(options: dict[str, Any], headers: dict[str, str], error: str | None) -> None:
    checked = webhook.Source(listen="127.0.0.1:0", **options).options

    found = signature_error(checked, list(headers.items()), b"body", now=1100)

    assert found is None if error is None else error in (found or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listen": "0.0.0.0:80"}, "has no secret, and other machines could reach"),
        ({"listen": "8081"}, "a host and a port"),
        ({"key_header": "a", "key_path": "b"}, "give one of them"),
        ({"signed_text": "{timestamp}.{body}"}, "timestamp_header"),
        ({"secret": "short"}, "at least 8"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    (problem,) = webhook.Source(**options).problems

    assert message in problem.message


async def test_without_a_server_and_a_port_it_says_what_is_missing() -> None:
    with pytest.raises(FatalError) as raised:
        await webhook.Source().open(None)

    assert "listen=" in str(raised.value.suggestion)


async def test_a_port_that_is_taken_is_said() -> None:
    async with Opened(None) as opened:
        with pytest.raises(FatalError, match="cannot listen on 127"):
            await opened.source.fresh().open(None)


async def test_a_number_and_a_text_are_two_keys() -> None:
    async with Opened(None, body="array", key_path="id") as opened:
        answer, records = await opened.deliver([{"id": 1}, {"id": "1"}, {"id": 1}])

    assert answer.json() == {"accepted": 2, "repeated": 1}
    assert [each.payload.after for each in records] == [{"id": 1}, {"id": "1"}]


async def test_what_is_not_durable_is_bounded_whatever_became_of_its_requests() -> None:
    # Two bodies fill it, though the first request was given up by then.
    async with Opened(None, key_path="id", answer_seconds=0.05, waiting_max=2, body_size_max=2000) as opened:
        large = [{"id": n, "x": "x" * 1982} for n in range(5)]
        errors = [(await opened.post(body)).json()["error"] for body in (large[0], large[0], large[1], large[2])]
        waiting = len(opened.source._ready)
        (first,) = await opened.source.read(1)
        still = await opened.post(large[3])
        await opened.source.ack([first.position])
        more = (await opened.post(large[4])).json()["error"]
        records = list(await opened.source.read(10))

    full = "too much is not durable yet"
    assert errors == ["the records are not durable yet"] * 3 + [full]
    assert waiting == 2
    assert (still.status_code, still.json()["error"], still.headers["retry-after"]) == (503, full, "5")
    assert more == "the records are not durable yet"
    assert [each.payload.after["id"] for each in records] == [1, 4]  # type: ignore[index, call-overload]


async def test_records_without_content_fill_the_bound_too() -> None:
    async with Opened(None, answer_seconds=0.001, waiting_max=2, body_size_max=10) as opened:
        errors = [(await opened.post({})).json()["error"] for _ in range(5)]

    assert errors[-1] == "too much is not durable yet"
    assert len(opened.source._ready) < 5


def test_positions_in_flight_share_the_keys_that_they_carry() -> None:
    keys = DeliveredKeys(1000)
    for n in range(1000):
        keys.add(hash_key(str(n)))
    tracemalloc.start()
    positions = []
    for n in range(1000, 6000):
        keys.add(hash_key(str(n)))
        positions.append(keys.position(n))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # As bytes they are 40 MB.
    assert size < 2_000_000
    for n in (1000, 1999, 2000, 2001, 5999):
        restored = DeliveredKeys(1000, positions[n - 1000].encode())
        known = [hash_key(str(each)) in restored for each in (n - 1000, n - 999, n, n + 1)]
        assert known == [False, True, True, False]
        assert restored.position(n).encode() == positions[n - 1000].encode()

"""`embed` and `model.call` against a real server: several records at once, waits it asks for, and what it refuses."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import trio
from builders import batch_of
from conduit_processors.model import Call, Embed
from http_peer import HttpPeer, PeerAnswer, PeerRequest

from conduit_py.sdk import FatalError, Record, RecordRefused, Result, TransientError


class ModelServer:
    """Answers as an API of OpenAI does: the vector of a text is its length. It refuses texts with `bad` in them."""

    def __init__(self) -> None:
        self.disturb: Callable[[PeerRequest], PeerAnswer | None] = lambda request: None

    def __call__(self, request: PeerRequest) -> PeerAnswer:
        disturbed = self.disturb(request)
        if disturbed is not None:
            return disturbed
        texts = json.loads(request.body)["input"]
        if any("bad" in text for text in texts):
            return PeerAnswer({"error": {"message": "too many tokens"}}, status=400)
        data = [{"index": index, "embedding": [len(text), 1.5]} for index, text in enumerate(texts)]
        # In another order: `index` says which is which.
        return PeerAnswer({"data": data[::-1]})


@pytest.fixture
def model() -> ModelServer:
    return ModelServer()


@pytest.fixture
def peer(model: ModelServer) -> Iterator[HttpPeer]:
    with HttpPeer(model).serving() as serving:
        yield serving


def embed(peer: HttpPeer, **more: Any) -> Embed:
    options = {"field": "text", "into": "vector", "model": "small", "url": f"{peer.url}/v1", **more}
    return Embed(**cast("Any", options))


async def process(processor: Embed | Call, *payloads: Any) -> Sequence[Result]:
    fresh = processor.fresh()
    fresh.open()
    try:
        return await fresh.process_batch(batch_of(*payloads))
    finally:
        await fresh.close()


def texts(*given: str) -> list[dict[str, str]]:
    return [{"text": each} for each in given]


def inputs(peer: HttpPeer) -> list[list[str]]:
    return [json.loads(request.body)["input"] for request in peer.requests]


async def test_several_texts_share_a_request(peer: HttpPeer) -> None:
    results = await process(embed(peer, batch_records_max=2, bearer_token="k3y"), *texts("a", "bb", "ccc"))

    assert [cast("Record", each).payload["vector"] for each in results] == [[1.0, 1.5], [2.0, 1.5], [3.0, 1.5]]
    assert inputs(peer) == [["a", "bb"], ["ccc"]]
    assert peer.requests[0].path == "/v1/embeddings"
    assert peer.requests[0].headers["authorization"] == "Bearer k3y"
    assert json.loads(peer.requests[0].body)["model"] == "small"


async def test_large_texts_have_requests_of_their_own(peer: HttpPeer) -> None:
    await process(embed(peer, batch_bytes_max=20), *texts("a" * 15, "b" * 15, "c"))

    assert [len(each) for each in inputs(peer)] == [1, 2]


async def test_only_what_the_model_does_not_take_is_refused(peer: HttpPeer) -> None:
    payloads = [*texts("a", "b", "bad", "d", "e"), {"text": " "}, {"text": 5}, {"other": "x"}]
    results = await process(embed(peer), *payloads)

    refused = {index: str(each) for index, each in enumerate(results) if isinstance(each, RecordRefused)}
    assert set(refused) == {2, 5, 6, 7}
    assert "answers 400" in refused[2]
    assert "too many tokens" in refused[2]
    assert "k3y" not in refused[2]
    assert refused[5] == ".Payload.After.text: has no vector: it is empty"
    assert [cast("Record", results[index]).payload["vector"] for index in (0, 1, 3, 4)] == [[1.0, 1.5]] * 4


async def test_it_waits_as_long_as_the_server_asks(model: ModelServer, peer: HttpPeer) -> None:
    # On the real clock: a virtual one jumps over the time that a real server takes to answer.
    model.disturb = lambda request: (
        PeerAnswer(b"slow down", status=429, headers={"retry-after": "1"}) if len(peer.requests) == 1 else None
    )
    began = trio.current_time()
    [result] = await process(embed(peer), *texts("a"))

    assert isinstance(result, Record)
    assert trio.current_time() - began >= 1


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (503, TransientError, "answers 503"),
        (401, FatalError, "answers 401"),
        (404, FatalError, "answers 404"),
        (301, FatalError, "answers 301"),
    ],
)
async def test_trouble_with_the_server_refuses_no_record(
    model: ModelServer, peer: HttpPeer, status: int, kind: type[Exception], text: str
) -> None:
    model.disturb = lambda request: PeerAnswer(b"no", status=status)

    with pytest.raises(kind, match=text):
        await process(embed(peer, retries=0), *texts("a", "b"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([{"index": 0, "embedding": [1.0]}], "no list `data` of 2 vectors"),
        ([{"index": 0, "embedding": [1.0]}] * 2, "not numbered from 0 to 1"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}], "a vector with 2 numbers, and not"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": ["x"]}], "no list of numbers"),
        ([{"index": 0, "embedding": [True]}, {"index": 1, "embedding": []}], "no list of numbers"),
    ],
)
async def test_vectors_that_may_belong_to_others_get_into_no_record(
    model: ModelServer, peer: HttpPeer, data: list[Any], text: str
) -> None:
    model.disturb = lambda request: PeerAnswer({"data": data})

    with pytest.raises(FatalError, match=text):
        await process(embed(peer), *texts("a", "b"))


async def test_an_endpoint_gets_a_list_and_answers_with_one(model: ModelServer, peer: HttpPeer) -> None:
    def score(request: PeerRequest) -> PeerAnswer:
        asked = json.loads(request.body)
        answers = [
            {"error": "no price"} if "price" not in each else {"score": each["price"] / 2} for each in asked["rows"]
        ]
        return PeerAnswer({"result": {"scores": answers}})

    model.disturb = score
    call = Call(
        url=f"{peer.url}/score", into="score", inputs="rows", parameters={"version": 3}, outputs="$.result.scores"
    )
    first, second, third = await process(call, {"price": 4}, {"name": "pen"}, b"raw")

    assert cast("Record", first).payload.after == {"price": 4, "score": {"score": 2.0}}
    assert str(second) == "the endpoint answers 'no price'"
    assert isinstance(third, RecordRefused)
    assert json.loads(peer.requests[0].body) == {"version": 3, "rows": [{"price": 4}, {"name": "pen"}]}


async def test_an_endpoint_with_another_number_of_answers_stops_the_pipeline(
    model: ModelServer, peer: HttpPeer
) -> None:
    model.disturb = lambda request: PeerAnswer([1])

    with pytest.raises(FatalError, match="the body is no list of 2 answers"):
        await process(Call(url=peer.url, into="score"), {"a": 1}, {"a": 2})

"""The HTTP source: every kind of paging, resumed after any record; passes; limits, tokens and retries."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
from conduit_connectors import http
from conduit_connectors.http.paging import PollState
from http_peer import HttpPeer, PagedApi, PeerAnswer, PeerRequest

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Record
from conduit_py.testing import source_acceptance

PAGINGS: dict[str, dict[str, Any]] = {
    "none": {"params": {"cursor": 17}},
    "cursor": {"paging": "cursor", "cursor_path": "next"},
    "page": {"paging": "page"},
    "offset": {"paging": "offset"},
    "link": {"paging": "link"},
    "jsonl": {},
}


@pytest.fixture
def api() -> PagedApi:
    return PagedApi(21)


@pytest.fixture
def peer(api: PagedApi) -> Iterator[HttpPeer]:
    with HttpPeer(api).serving() as serving:
        yield serving


def source(peer: HttpPeer, kind: str = "cursor", **options: Any) -> http.Source:
    where = "$" if kind == "jsonl" else "data.items"
    return http.Source(url=f"{peer.url}/{kind}", records=where, **PAGINGS[kind] | options)


def cursor_source(peer: HttpPeer) -> http.Source:
    return source(peer)


def page_source(peer: HttpPeer) -> http.Source:
    return source(peer, "page")


TestCursorAcceptance = source_acceptance(cursor_source)
TestPageAcceptance = source_acceptance(page_source)


async def read_all(connector: http.Source, position: bytes | None = None, n: int = 3) -> list[Reading]:
    opened = connector.fresh()
    readings: list[Reading] = []
    await opened.open(position)  # type: ignore[misc]
    try:
        while True:
            readings.append(await opened.read(n))  # type: ignore[misc]
    except (EndOfSource, NothingYet):
        return readings
    finally:
        await opened.teardown()


def records_of(reading: Reading) -> list[Record]:
    assert isinstance(reading.records, list)
    return reading.records


def ids(readings: list[Reading]) -> list[int]:
    return [record.payload.after["id"] for each in readings for record in records_of(each)]  # type: ignore[index, call-overload]


def last_position(readings: list[Reading]) -> bytes:
    position = readings[-1].position or records_of(readings[-1])[-1].position
    assert position is not None
    return position


@pytest.mark.parametrize("kind", sorted(PAGINGS))
async def test_every_paging_reads_all_and_resumes_after_any_record(kind: str, peer: HttpPeer) -> None:
    connector = source(peer, kind, key_field="id")

    readings = await read_all(connector)
    records = [record for each in readings for record in records_of(each)]

    expected = list(range(17, 21)) if kind == "none" else list(range(21))
    assert ids(readings) == expected
    assert records[0].key == {"id": expected[0]}
    for index in (0, 3, len(records) - 1):
        assert ids(await read_all(connector, records[index].position)) == expected[index + 1 :]


def test_positions_of_others_are_refused(peer: HttpPeer) -> None:
    for position in (b"17", b'{"checkpoint":{"next":[1]}}'):
        with pytest.raises(FatalError, match="position"):
            source(peer).check_position(position)


async def test_a_page_that_changed_is_given_again_and_nothing_of_it_is_skipped(peer: HttpPeer, api: PagedApi) -> None:
    readings = await read_all(source(peer))
    position = records_of(readings[2])[1].position
    del api.records[5]

    assert ids(await read_all(source(peer), position)) == [4, *range(6, 21)]


async def test_a_pass_with_since_begins_at_the_highest_value_and_repeats_nothing(peer: HttpPeer, api: PagedApi) -> None:
    # Newest first, and the API filters with >=: the three records of the last value come again each time.
    api.records.reverse()
    connector = source(peer, "cursor", since_param="since", since_path="updated", since_start="2026-01-01T00:00:01Z")

    first = await read_all(connector)
    again = await read_all(connector, last_position(first))
    api.records.insert(0, {"id": 99, "updated": api.records[0]["updated"]})
    third = await read_all(connector, last_position(first))

    assert ids(first) == list(range(20, 2, -1))
    assert ids(again) == []
    assert ids(third) == [99]
    assert peer.requests[-1].params["since"] == "2026-01-01T00:00:06Z"


async def test_polling_waits_between_passes_and_gives_what_is_new(peer: HttpPeer, api: PagedApi) -> None:
    connector = source(peer, "link", since_param="since", since_path="updated", poll_seconds=0.05)
    await connector.open(None)  # type: ignore[misc]
    got: list[int] = []

    with trio.fail_after(60):
        while len(got) < 23:
            try:
                got += ids([await connector.read(50)])  # type: ignore[misc]
            except NothingYet:
                if len(api.records) == 21:
                    api.records += [{"id": 21, "updated": "2026-01-02"}, {"id": 22, "updated": "2026-01-03"}]
    await connector.teardown()

    assert got == list(range(23))


async def test_each_pass_gives_everything_again_with_positions_of_its_own(peer: HttpPeer) -> None:
    connector = source(peer, "page", poll_seconds=0.01)
    await connector.open(None)  # type: ignore[misc]
    records: list[Any] = []

    while len(records) < 42:
        with suppress(NothingYet):
            records += (await connector.read(50)).records  # type: ignore[misc]
    await connector.teardown()

    assert [record.payload.after["id"] for record in records] == [*range(21), *range(21)]
    assert len({record.position for record in records}) == 42


async def test_busy_answers_are_waited_for_as_they_ask(peer: HttpPeer, api: PagedApi) -> None:
    busy = [
        PeerAnswer(status=429, headers={"Retry-After": "1"}),
        PeerAnswer(status=503),
        PeerAnswer(raw=b""),
        PeerAnswer(status=408),
    ]
    api.disturb = lambda request: busy.pop(0) if busy and "cursor" in request.params else None
    started = trio.current_time()

    assert ids(await read_all(source(peer))) == list(range(21))
    assert busy == []
    assert trio.current_time() - started >= 1


async def test_requests_are_spaced(peer: HttpPeer) -> None:
    started = trio.current_time()

    await read_all(source(peer, requests_per_second=50))

    assert trio.current_time() - started >= (len(peer.requests) - 1) / 50


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"bearer_token": "t0ken"}, "Bearer t0ken"),
        ({"username": "me", "password": "pä:ss"}, "Basic bWU6cMOkOnNz"),
        ({"headers": {"Authorization": "Key abc"}}, "Key abc"),
    ],
)
async def test_credentials_are_sent(options: dict[str, Any], header: str, peer: HttpPeer) -> None:
    await read_all(source(peer, **options))

    assert {request.headers["authorization"] for request in peer.requests} == {header}
    assert header.split()[1] not in repr(source(peer, **options).options)


async def test_a_token_of_oauth2_is_kept_until_it_is_refused(peer: HttpPeer, api: PagedApi) -> None:
    given: list[str] = []

    def guard(request: PeerRequest) -> PeerAnswer | None:
        if request.path == "/token":
            assert request.headers["authorization"] == "Basic YSUzQWI6Yw=="
            assert request.body == b"grant_type=client_credentials&scope=read+all"
            given.append(f"token{len(given)}")
            return PeerAnswer({"access_token": given[-1], "expires_in": 3600})
        right = f"Bearer {given[-1] if given else ''}"
        # The third page revokes the token.
        if request.params.get("cursor") == "8" and len(given) == 1:
            return PeerAnswer(status=401)
        return None if request.headers.get("authorization") == right else PeerAnswer(status=401)

    api.disturb = guard
    oauth2 = {"token_url": f"{peer.url}/token", "client_id": "a:b", "client_secret": "c", "scope": "read all"}

    assert ids(await read_all(source(peer, **oauth2))) == list(range(21))
    assert given == ["token0", "token1"]


async def test_a_token_is_renewed_before_it_ends(peer: HttpPeer, api: PagedApi) -> None:
    tokens: list[str] = []

    def give(request: PeerRequest) -> PeerAnswer | None:
        if request.path != "/token":
            return None
        tokens.append("t")
        return PeerAnswer({"access_token": "t", "expires_in": 1e-9})

    api.disturb = give

    await read_all(source(peer, token_url=f"{peer.url}/token", client_id="a", client_secret="c"))

    assert len(tokens) == 6


async def test_equal_records_of_the_last_value_are_counted(peer: HttpPeer, api: PagedApi) -> None:
    api.records[:] = [{"id": 1, "updated": "b"}, {"id": 1, "updated": "b"}]
    connector = source(peer, "cursor", since_param="since", since_path="updated")
    first = await read_all(connector)

    api.records.append({"id": 1, "updated": "b"})
    second = await read_all(connector, last_position(first))
    third = await read_all(connector, last_position(second))

    assert [ids(each) for each in (first, second, third)] == [[1, 1], [1], []]


async def test_of_more_than_100_of_one_value_the_same_ones_are_repeated(peer: HttpPeer, api: PagedApi) -> None:
    api.records[:] = [{"id": n, "updated": "b"} for n in range(103)]
    connector = source(peer, "cursor", since_param="since", since_path="updated")
    passes = [await read_all(connector, n=200)]
    for _ in range(2):
        passes.append(await read_all(connector, last_position(passes[-1]), n=200))

    assert [ids(each) for each in passes] == [list(range(103)), [100, 101, 102], [100, 101, 102]]


async def test_a_since_of_zero_is_kept_across_runs(peer: HttpPeer) -> None:
    peer.respond = lambda request: PeerAnswer([{"id": 1, "at": 0}])
    connector = http.Source(url=peer.url, since_param="since", since_path="at", since_start=-1)
    first = await read_all(connector)

    again = await read_all(connector, last_position(first))

    assert (ids(first), ids(again)) == ([1], [])
    assert [request.params["since"] for request in peer.requests] == ["-1", "0"]


def test_only_defaults_are_left_out_of_a_position() -> None:
    state = PollState(since=0, highest=0.0, next=0)

    assert PollState.decode(state.encode(), http.Source(url="http://127.0.0.1/").options) == state
    assert PollState().encode() == {}


@pytest.mark.parametrize(("kind", "warns"), [("cursor", True), ("offset", False)])
async def test_a_run_that_has_nothing_to_continue_says_so(
    kind: str, warns: bool, peer: HttpPeer, caplog: pytest.LogCaptureFixture
) -> None:
    first = await read_all(source(peer, kind), n=50)
    silent = caplog.text == ""

    again = await read_all(source(peer, kind), last_position(first))

    assert silent
    assert ids(again) == []
    assert ("was read to its end by an earlier run" in caplog.text) is warns
    assert ("since_param" in caplog.text) is warns

"""Dead letters over HTTP: found, counted, shown, edited, sent again once, discarded; and who may do what."""

import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import trio
from pydantic import SecretStr
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Retention, Source, sdk
from conduit_py.errors import RecordRefused
from conduit_py.server.access import Policy, Role
from conduit_py.server.service import RETAIN_SECONDS
from conduit_py.testing import ScriptedDestination, ScriptedSource

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Site

LETTERS = "/api/v1/dead-letters"


class KeyedOptions(sdk.Options):
    key: SecretStr


class Keyed(sdk.DestinationConnector[KeyedOptions]):
    """Refuses everything, and is careless with its key."""

    async def write(self, batch: sdk.Batch) -> dict[int, str]:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(range(len(batch)), f"no access with {self.options.key.get_secret_value()}")


class Shop:
    """A pipeline whose processor `price` refuses the numbers in `bad`."""

    def __init__(self, id: str, site: "Site", bad: set[int], **more: Any) -> None:
        self.bad = bad
        self.site = site
        letters = more.pop("dead_letters", DeadLetters("journal"))
        destination = ScriptedDestination(name=f"{id}-lake", log=site.log)
        self.pipeline = Pipeline(
            id,
            sources=[Source("web", ScriptedSource(name=id, records=6, log=site.log, bounded=False))],
            processors=[Processor("price", self.price)],
            destinations=more.pop("destinations", [Destination("lake", destination)]),
            dead_letters=letters,
        )

    def price(self, record: Record) -> Record:
        number = record.payload["n"]
        if number in self.bad:
            record.payload["exact"] = Decimal("1.10")
            raise RecordRefused(f"row {number}: bad price")
        return record

    async def run(self) -> "Shop":
        await self.site.service.fleet.add(self.pipeline)
        self.site.service.fleet.start(self.pipeline.id)
        await self.site.wait_until_settled()
        return self


@pytest.fixture
async def shop(autojump_clock: MockClock, open_site: "OpenSite") -> AsyncIterator[Shop]:
    """For tests that ask for `autojump_clock` themselves: only then is it the clock of the test."""
    async with open_site() as site:
        yield await Shop("shop", site, {1, 2, 4}).run()


async def list_letters(site: "Site", **query: Any) -> list[dict[str, Any]]:
    answer = await site.client.get(LETTERS, params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["letters"])


async def test_letters_are_listed_newest_first_without_their_records(autojump_clock: MockClock, shop: Shop) -> None:
    letters = await list_letters(shop.site)

    assert [letter["error"] for letter in letters] == [f"row {number}: bad price" for number in (4, 2, 1)]
    assert {(letter["pipeline"], letter["source"], letter["node"], letter["state"]) for letter in letters} == {
        ("shop", "web", "price", "kept")
    }
    assert all("record" not in letter for letter in letters)


async def test_a_list_is_narrowed_down_and_turned_page_by_page(autojump_clock: MockClock, shop: Shop) -> None:
    first = (await shop.site.client.get(LETTERS, params={"limit": 2})).json()
    second = (await shop.site.client.get(LETTERS, params={"limit": 2, "cursor": first["next"]})).json()

    assert (len(first["letters"]), first["total"], second["next"]) == (2, 3, None)
    assert [letter["error"] for letter in second["letters"]] == ["row 1: bad price"]
    assert len(await list_letters(shop.site, text="ROW 2")) == 1
    assert len(await list_letters(shop.site, pipeline="shop", node="price", state="kept", source="web", since=0)) == 3
    assert await list_letters(shop.site, pipeline="other") == []
    assert await list_letters(shop.site, until=1) == []


async def test_causes_are_counted(autojump_clock: MockClock, shop: Shop) -> None:
    (cause,) = (await shop.site.client.get(f"{LETTERS}/causes")).json()["causes"]

    assert (cause["pipeline"], cause["node"], cause["cause"], cause["count"]) == (
        "shop",
        "price",
        "row #: bad price",
        3,
    )
    assert len(await list_letters(shop.site, cause=cause["cause"])) == 3


async def test_a_letter_is_shown_with_its_record_and_its_history(autojump_clock: MockClock, shop: Shop) -> None:
    id = (await list_letters(shop.site))[-1]["id"]
    letter = (await shop.site.client.get(f"{LETTERS}/{id}")).json()

    assert letter["record"]["payload"]["after"] == {"n": 1, "from": "shop", "exact": "1.10"}
    assert [(each["node"], each["error"], each["attempt"]) for each in letter["history"]] == [
        ("price", "row 1: bad price", 1)
    ]
    assert [each["node"] for each in letter["records"]] == ["price"]
    assert letter["bytes"] == (await list_letters(shop.site))[-1]["bytes"]


async def test_an_edit_changes_what_it_says_and_nothing_else(autojump_clock: MockClock, shop: Shop) -> None:
    id = (await list_letters(shop.site))[-1]["id"]
    record = (await shop.site.client.get(f"{LETTERS}/{id}")).json()["record"]
    record["payload"]["after"]["n"] = 100
    answer = await shop.site.client.put(f"{LETTERS}/{id}/record", json={"record": record})
    kept = await shop.site.service.store.letters.letter(id)

    assert answer.status_code == 200, answer.text
    assert answer.json()["edited"] is True
    assert answer.json()["records"][0]["original"]["payload"]["after"]["n"] == 1
    assert kept.record.payload.after == {"n": 100, "from": "shop", "exact": Decimal("1.10")}
    assert kept.record.position == b"1"


async def test_a_letter_with_text_that_json_cannot_carry_is_shown_and_edited_all_the_same(
    autojump_clock: MockClock, shop: Shop
) -> None:
    id = (await list_letters(shop.site))[-1]["id"]
    edit = b'{"record": {"metadata": {"half": "\\ud800"}, "payload": {"after": {"n": "\\udcff"}}}}'
    answer = await shop.site.client.put(
        f"{LETTERS}/{id}/record", content=edit, headers={"content-type": "application/json"}
    )
    shown = (await shop.site.client.get(f"{LETTERS}/{id}")).json()
    shown["record"]["operation"] = "update"
    await shop.site.client.put(f"{LETTERS}/{id}/record", json={"record": shown["record"]})
    kept = await shop.site.service.store.letters.letter(id)

    assert answer.status_code == 200, answer.text
    assert shown["record"]["metadata"] == {"half": "\\ud800"}
    assert shown["record"]["payload"]["after"] == {"n": "\\udcff"}
    assert (kept.record.metadata, kept.record.payload.after) == ({"half": "\ud800"}, {"n": "\udcff"})


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"payload": []}, "payload"),
        ({"operation": "explode"}, "operation"),
        ({"what": 1}, "what"),
        ({"key": "%%%"}, "key"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_what_is_no_record_is_refused_by_name(
    autojump_clock: MockClock, shop: Shop, record: Any, named: str
) -> None:
    id = (await list_letters(shop.site))[0]["id"]
    answer = await shop.site.client.put(f"{LETTERS}/{id}/record", json={"record": record})

    assert answer.status_code == 422
    assert answer.json()["error"]["path"].startswith(f"body.record.{named}")
    assert (await list_letters(shop.site))[0]["edited"] is False


async def test_a_dry_run_says_what_would_happen_and_changes_nothing(autojump_clock: MockClock, shop: Shop) -> None:
    answer = (await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {}, "dry_run": True})).json()

    assert answer["queued"] == 3
    assert {(each["pipeline"], tuple(each["nodes"])) for each in answer["letters"]} == {("shop", ("price",))}
    assert {letter["state"] for letter in await list_letters(shop.site)} == {"kept"}
    assert shop.site.log.numbers("shop-lake") == [0, 3, 5]


async def test_a_replay_delivers_each_letter_once_however_often_it_is_asked_for(
    autojump_clock: MockClock, shop: Shop
) -> None:
    ids = [letter["id"] for letter in await list_letters(shop.site)]
    shop.bad.clear()
    answers = [
        (await shop.site.client.post(f"{LETTERS}/replay", json={"ids": [*ids, "a" * 16]})).json() for _ in range(2)
    ]
    await shop.site.wait_until_settled()
    late = (await shop.site.client.post(f"{LETTERS}/replay", json={"ids": ids})).json()

    assert (answers[0]["queued"], answers[0]["not_found"]) == (3, ["a" * 16])
    assert answers[1]["queued"] == 0
    assert (late["queued"], late["not_found"]) == (0, sorted(ids))
    assert shop.site.log.numbers("shop-lake") == [0, 3, 5, 1, 2, 4]
    assert await list_letters(shop.site) == []


async def test_letters_of_a_stopped_pipeline_wait_for_its_start(autojump_clock: MockClock, shop: Shop) -> None:
    fleet = shop.site.service.fleet
    fleet.stop("shop")
    await shop.site.wait_until_settled()
    shop.bad.clear()
    answer = (await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {"pipeline": "shop"}})).json()
    again = (await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {}})).json()
    await shop.site.wait_until_settled()
    waiting = await list_letters(shop.site, state="queued")
    edit = await shop.site.client.put(f"{LETTERS}/{waiting[0]['id']}/record", json={"record": {}})
    fleet.start("shop")
    await shop.site.wait_until_settled()

    assert answer["notes"] == ["shop is not running: its letters are sent when it is started"]
    assert (again["queued"], again["already_queued"]) == (0, 3)
    assert len(waiting) == 3
    assert (edit.status_code, edit.json()["error"]["code"]) == (409, "dead_letter.queued")
    assert set(shop.site.log.numbers("shop-lake")) == set(range(6))
    assert await list_letters(shop.site) == []


async def test_letters_that_cannot_be_sent_say_why(autojump_clock: MockClock, shop: Shop) -> None:
    fleet = shop.site.service.fleet
    elsewhere = Shop("shop", shop.site, set(), dead_letters=DeadLetters("drop"))
    answers = []
    chosen = {"filter": {}, "destinations": ["mart"]}
    answers.append((await shop.site.client.post(f"{LETTERS}/replay", json=chosen)).json())
    await fleet.replace(elsewhere.pipeline)
    answers.append((await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {}})).json())
    await fleet.remove("shop")
    answers.append((await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {}})).json())

    assert [(answer["queued"], answer["impossible"]) for answer in answers] == [(0, 3)] * 3
    assert [answer["obstacles"][0]["reason"] for answer in answers] == [
        "it was refused by price, not on the way to these destinations",
        "shop no longer keeps its letters: only the handler journal sends them again",
        "there is no pipeline 'shop' here",
    ]


async def test_letters_are_discarded_by_id_or_filter(autojump_clock: MockClock, shop: Shop) -> None:
    ids = [letter["id"] for letter in await list_letters(shop.site)]

    async def discard(**request: Any) -> int:
        answer = await shop.site.client.post(f"{LETTERS}/discard", json=request)
        return int(answer.json()["discarded"])

    assert await discard(filter={}, dry_run=True) == 3
    assert await discard(ids=ids[:1]) == 1
    assert await discard(ids=ids[:1]) == 0
    assert await discard(filter={"text": "row 2"}) == 1
    assert [letter["id"] for letter in await list_letters(shop.site)] == ids[2:]


@pytest.mark.parametrize("request_body", [{}, {"ids": [], "filter": {}}, {"ids": ["../x"]}, {"filter": {"what": 1}}])
async def test_a_request_must_say_which_letters(autojump_clock: MockClock, shop: Shop, request_body: Any) -> None:
    statuses = [
        (await shop.site.client.post(f"{LETTERS}/{what}", json=request_body)).status_code
        for what in ("replay", "discard")
    ]

    assert statuses == [422, 422]
    assert len(await list_letters(shop.site)) == 3


async def test_an_unknown_letter_is_not_found(autojump_clock: MockClock, shop: Shop) -> None:
    answer = await shop.site.client.get(f"{LETTERS}/{'a' * 16}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "dead_letter.unknown")


async def test_secrets_are_in_no_answer_and_survive_an_edit(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    secret = "hunter2-" + "x" * 20
    async with open_site() as site:
        shop = Shop("shop", site, set(), destinations=[Destination("lake", Keyed(key=SecretStr(secret)))])

        def leak(record: Record) -> Record:
            record.payload["token"] = f"Bearer {secret}"
            return record

        shop.pipeline.processors = [Processor("leak", leak)]
        await shop.run()
        summary = (await list_letters(site))[0]
        shown = await site.client.get(f"{LETTERS}/{summary['id']}")
        record = shown.json()["record"]
        record["payload"]["after"]["n"] = 77
        edited = await site.client.put(f"{LETTERS}/{summary['id']}/record", json={"record": record})
        causes = await site.client.get(f"{LETTERS}/causes")
        kept = await site.service.store.letters.letter(summary["id"])

    assert summary["error"].startswith("no access with ")
    assert not [text for text in (str(summary), shown.text, edited.text, causes.text) if secret in text]
    assert kept.record.payload.after == {"n": 77, "from": "shop", "token": f"Bearer {secret}"}


async def test_lists_are_for_readers_and_contents_for_operators(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    async with open_site(policy=guarded) as site:
        shop = await Shop("shop", site, {1}).run()
        headers = {role: {"authorization": f"Bearer {token}"} for role, token in tokens.items()}
        (letter,) = (await site.client.get(LETTERS, headers=headers[Role.READ])).json()["letters"]
        contents = ("GET", f"{LETTERS}/{letter['id']}"), ("HEAD", f"{LETTERS}/{letter['id']}")
        changes = ("POST", f"{LETTERS}/replay"), ("POST", f"{LETTERS}/discard"), ("PUT", f"{contents[0][1]}/record")
        statuses = {
            (method, role): (await site.client.request(method, path, headers=headers[role])).status_code
            for method, path in (*contents, *changes)
            for role in (Role.READ, Role.OPERATE)
        }
        causes = await site.client.get(f"{LETTERS}/causes", headers=headers[Role.READ])

    assert shop.bad == {1}
    assert {status for (_, role), status in statuses.items() if role is Role.READ} == {403}
    assert 403 not in {status for (_, role), status in statuses.items() if role is Role.OPERATE}
    assert causes.status_code == 200


async def test_a_server_forgets_old_letters_of_pipelines_that_do_not_run(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site() as site, trio.open_nursery() as nursery:
        letters = DeadLetters("journal", retention=Retention(age=timedelta(microseconds=1)))
        await Shop("shop", site, {1}, dead_letters=letters).run()
        site.service.fleet.stop("shop")
        await site.wait_until_settled()
        before = len(await list_letters(site))
        nursery.start_soon(site.service.watch)
        await trio.sleep(RETAIN_SECONDS)
        after = len(await list_letters(site))
        nursery.cancel_scope.cancel()

    assert (before, after) == (1, 0)


async def test_a_condition_on_the_record_selects_letters(autojump_clock: MockClock, shop: Shop) -> None:
    large = {"when": "payload.n > 1"}
    found = await list_letters(shop.site, **large)
    page = (await shop.site.client.get(LETTERS, params={**large, "limit": 1})).json()
    causes = await shop.site.client.get(f"{LETTERS}/causes", params=large)
    replay = await shop.site.client.post(f"{LETTERS}/replay", json={"filter": large, "dry_run": True})
    discarded = await shop.site.client.post(f"{LETTERS}/discard", json={"filter": {**large, "text": "row 4"}})

    assert [letter["error"] for letter in found] == ["row 4: bad price", "row 2: bad price"]
    assert (len(page["letters"]), page["total"]) == (1, 2)
    assert sum(each["count"] for each in causes.json()["causes"]) == 2
    assert replay.json()["queued"] == 2
    assert discarded.json() == {"discarded": 1}
    assert [letter["error"] for letter in await list_letters(shop.site)] == ["row 2: bad price", "row 1: bad price"]
    # A condition that has no value for a record is not true for it.
    assert await list_letters(shop.site, when="payload.nothing > 1") == []


async def test_a_wrong_condition_is_named(autojump_clock: MockClock, shop: Shop) -> None:
    wrong = await shop.site.client.get(LETTERS, params={"when": "payload.n >"})
    unknown = await shop.site.client.post(f"{LETTERS}/discard", json={"filter": {"when": "order.n > 1"}})

    assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, unknown.json()["error"]["code"])
    assert "is no CEL" in unknown.json()["error"]["message"]


async def test_a_condition_tells_nothing_to_those_who_may_not_see_records(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    async with open_site(policy=guarded) as site:
        await Shop("shop", site, {1}).run()
        answers = {
            role: await site.client.get(
                LETTERS, params={"when": "payload.n == 1"}, headers={"authorization": f"Bearer {token}"}
            )
            for role, token in tokens.items()
        }

    assert answers[Role.READ].status_code == 403
    assert answers[Role.OPERATE].json()["total"] == 1


async def test_letters_are_counted_in_the_metrics(autojump_clock: MockClock, shop: Shop) -> None:
    await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {"text": "row 2"}})
    await shop.site.wait_until_settled()
    shop.bad.discard(1)
    await shop.site.client.post(f"{LETTERS}/replay", json={"filter": {"text": "row 1"}})
    await shop.site.wait_until_settled()
    text = (await shop.site.client.get("/metrics")).text

    assert 'conduit_dead_letters{pipeline_name="shop",state="kept"} 2' in text
    assert 'conduit_dead_letters{pipeline_name="shop",state="queued"} 0' in text
    assert 'conduit_records_replayed_total{pipeline_name="shop"} 1' in text
    assert 'conduit_dead_letters_bytes{pipeline_name="shop"} 0' not in text


async def test_clients_take_no_threads_from_pipelines(autojump_clock: MockClock, shop: Shop) -> None:
    begun, go_on = trio.Event(), threading.Event()

    def redact_slowly(text: str) -> str:
        trio.from_thread.run_sync(begun.set)
        go_on.wait()
        return text

    shop.site.service.redaction = redact_slowly
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(shop.site.client.get, LETTERS)
        await begun.wait()
        borrowed = trio.to_thread.current_default_thread_limiter().borrowed_tokens
        go_on.set()

    assert borrowed == 0

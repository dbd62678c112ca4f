"""What is remembered of options: every change is seen, no secret is stored, and older entries are read."""

import hashlib
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Source, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.redaction import SECRETS
from conduit_py.sdk import Batch
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import ConnectorEntry
from conduit_py.stream.connector_changes import fingerprint, is_old_form, mask_secrets, matches
from conduit_py.testing import ScriptedSource

REFERRED = "r3ferred-password-of-this-test"


class Login(BaseModel):
    """Who one is."""

    user: str = "me"
    password: SecretStr = SecretStr("")


class LakeOptions(sdk.Options):
    """Secrets wherever one may put them."""

    url: str = "db://host"
    login: Login = Login()
    logins: list[Login] = Field(default_factory=list)
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    seen: Any = None


class Lake(sdk.DestinationConnector[LakeOptions]):
    """Notes each call."""

    notified: list[Any]

    async def on_updated(self, before: dict[str, Any]) -> None:
        self.notified.append(before)

    async def write(self, batch: Batch) -> None:
        pass

    def fresh(self) -> "Lake":
        new = super().fresh()
        assert isinstance(new, Lake)
        new.notified = self.notified
        return new


CHANGES = [
    {"url": "db://other"},
    {"login": Login(password=SecretStr("hunter2"))},
    {"logins": [Login(), Login(password=SecretStr("hunter2"))]},
    {"headers": {"authorization": SecretStr("hunter2")}},
    {"seen": [("a", 1)]},
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_however_deep(change: dict[str, Any]) -> None:
    before, after = LakeOptions(), LakeOptions(**change)

    assert matches(fingerprint(before), LakeOptions())
    assert matches(fingerprint(after), LakeOptions(**change))
    assert not matches(fingerprint(before), after)
    assert not matches(fingerprint(after), before)


def test_a_nested_secret_that_changes_is_a_change() -> None:
    one, other = (LakeOptions(headers={"a": SecretStr(secret)}) for secret in ("hunter2", "hunter3"))

    assert not matches(fingerprint(one), other)


def test_the_same_options_have_another_fingerprint_each_time() -> None:
    assert fingerprint(LakeOptions()) != fingerprint(LakeOptions())


def test_no_secret_is_in_what_is_stored() -> None:
    SECRETS.add(REFERRED)
    options = LakeOptions(
        url=f"db://me:{REFERRED}@host",
        login=Login(password=SecretStr("hunter2")),
        logins=[Login(password=SecretStr("hunter2"))],
        headers={"authorization": SecretStr("hunter2"), REFERRED: SecretStr("")},
        seen={"deep": (REFERRED, {REFERRED})},
    )
    text = repr(mask_secrets(options)) + fingerprint(options)

    assert "hunter2" not in text
    assert REFERRED not in text
    assert mask_secrets(options)["url"] == "db://me:***@host"


def lake(notified: list[Any], **options: Any) -> Pipeline:
    connector = Lake(**options)
    connector.notified = notified
    return Pipeline(
        "p", sources=[Source("in", ScriptedSource(records=1))], destinations=[Destination("lake", connector)]
    )


def old_entry(**revealed: str) -> ConnectorEntry:
    """As the first version stored it: in plain text, with a digest that has no key."""
    values: dict[str, str] = {
        "url": "'db://host'",
        "login": "",
        "logins": "[]",
        "headers": "{}",
        "seen": "None",
        **revealed,
    }
    values["login"] = repr(Login())
    digest = hashlib.blake2b(repr(sorted(values.items())).encode(), digest_size=16).hexdigest()
    return ConnectorEntry("destination", "", {"url": f"db://me:{REFERRED}@host"}, digest)


async def test_an_entry_of_the_older_form_is_read_and_replaced_without_an_update(autojump_clock: MockClock) -> None:
    SECRETS.add(REFERRED)
    store, notified = MemoryStore(), list[Any]()
    url = f"db://me:{REFERRED}@host"
    await store.save_connector("p", "lake", old_entry(url=repr(url)))
    await Supervisor(lake(notified, url=url), store).run()
    entry = (await store.connectors("p"))["lake"]

    assert notified == []
    assert not is_old_form(entry.digest)
    assert REFERRED not in repr(entry)


async def test_a_change_since_an_entry_of_the_older_form_is_an_update(autojump_clock: MockClock) -> None:
    store, notified = MemoryStore(), list[Any]()
    await store.save_connector("p", "lake", old_entry())
    await Supervisor(lake(notified, url="db://new"), store).run()

    assert len(notified) == 1


async def test_nothing_is_saved_while_nothing_changes(autojump_clock: MockClock) -> None:
    store, notified = MemoryStore(), list[Any]()
    await Supervisor(lake(notified, headers={"a": SecretStr("b")}), store).run()
    before = (await store.connectors("p"))["lake"]
    await Supervisor(lake(notified, headers={"a": SecretStr("b")}), store).run()

    assert (await store.connectors("p"))["lake"] == before
    assert notified == []

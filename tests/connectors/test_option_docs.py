"""Every plugin that comes along: options have a description, secrets are secrets, what is missing has one wording."""

from typing import Any, get_args

import pytest

from conduit_py.redaction import is_secret_name
from conduit_py.sdk import registry

FOUND = [
    (kind, name, registry.find(kind, name))
    for kind in get_args(registry.Kind)
    for name, entry in sorted(registry.installed(kind).items())
    if entry.value.startswith(("conduit_connectors.", "conduit_processors."))
]
NAMED = [pytest.param(plugin, id=f"{kind} {name}") for kind, name, plugin in FOUND]


def options_of(plugin: Any) -> dict[str, Any]:
    fields: dict[str, Any] = plugin.options_model.model_fields
    return fields


@pytest.mark.parametrize("plugin", NAMED)
def test_every_option_has_a_description_and_what_is_secret_is_marked(plugin: Any) -> None:
    undescribed = [name for name, field in options_of(plugin).items() if not field.description]
    bare = [
        name
        for name, field in options_of(plugin).items()
        # The address at which a token is fetched is none.
        if is_secret_name(name)
        and not name.endswith("_url")
        and "Secret" not in repr(field.annotation)
        and field.annotation is not bool
    ]

    assert (undescribed, bare) == ([], [])


@pytest.mark.parametrize("plugin", NAMED)
def test_what_is_missing_is_an_extra_of_ours(plugin: Any) -> None:
    # httpx2 comes with the distribution itself.
    assert all(extra == "httpx2" or extra.startswith("conduit-dataflow[") for extra in plugin.requires.values())


def test_the_list_says_what_each_needs() -> None:
    listed = registry.list_plugins()

    assert {each.needs for each in listed if each.available} == {""}
    assert all(each.needs.startswith("pip install 'conduit-dataflow[") for each in listed if not each.available)

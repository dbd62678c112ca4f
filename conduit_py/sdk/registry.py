"""The plugins installed on this machine, found by name through entry points."""

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias

from conduit_py.errors import EnvironmentUnfit
from conduit_py.sdk.options import did_you_mean
from conduit_py.sdk.plugin import Plugin

Kind: TypeAlias = Literal["source", "destination", "processor"]


class UnknownPlugin(LookupError):
    """No installed package offers a plugin of this kind and name."""

    def __init__(self, kind: Kind, name: str) -> None:
        known = sorted(installed(kind))
        self.message = f"there is no {kind} plugin {name!r}"
        self.suggestion = did_you_mean(name, known) or f"installed are {', '.join(known)}"
        super().__init__(f"{self.message} ({self.suggestion})")


@functools.cache
def installed(kind: Kind) -> dict[str, EntryPoint]:
    """The plugins of one kind by name, not yet imported."""
    return {entry.name: entry for entry in entry_points(group=f"conduit_py.{kind}s")}


def find(kind: Kind, name: str) -> type[Plugin[Any]]:
    """Import and return a plugin class. Conduit's `builtin:` prefix and `@version` suffix are accepted."""
    bare = name.removeprefix("builtin:").partition("@")[0]
    entry = installed(kind).get(bare)
    if entry is None:
        raise UnknownPlugin(kind, bare)
    try:
        plugin = entry.load()
    except ImportError as error:
        raise EnvironmentUnfit(
            f"the {kind} plugin {bare!r} cannot be loaded: {error}",
            suggestion=f"install what it needs, for example with the extra conduit-dataflow[{bare}]",
        ) from error
    assert isinstance(plugin, type)
    return plugin


def name_of(kind: Kind, plugin: type[Plugin[Any]]) -> str:
    """The name under which a plugin class is registered, or "" if it is not."""
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    for name, entry in installed(kind).items():
        module, _, attribute = entry.value.partition(":")
        # A package may re-export a class from the module it is written in.
        if entry.value == target or (plugin.__module__.startswith(f"{module}.") and attribute == plugin.__qualname__):
            return name
    return ""

"""Resolves the plugins named in a pipeline definition and collects every problem with them."""

import difflib
import functools
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, Literal

from conduit_py import sdk
from conduit_py.errors import Problem
from conduit_py.owned_thread import ASYNC_METHODS, is_coroutine_function
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Place, Plugin, at
from conduit_py.sdk.processor import FunctionProcessor, table_problems


def as_list(name: str, given: Any, place: Place | None) -> tuple[list[Any], list[Problem]]:
    """Return the items of a list. A single item counts as a list of one, so that its own problems are found too."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given), []
    what = f"must be a list, not {describe_value(given)}"
    return [given], [Problem(name, what, f"write {name}=[…]", *(place or (None, None)))]


def resolve_connector(
    kind: Literal["source", "destination"],
    base: type[Any],
    connector: object,
    settings: Mapping[str, object] | None,
    place: Place | None,
) -> tuple[Any, list[Problem]]:
    """Return the connector of a definition, given as an object or by name, or None; and its problems."""
    spot = place or (None, None)
    if isinstance(connector, str):
        connector, problems = _by_name(kind, "connector", connector, settings, place)
        if problems:
            return None, problems
    elif settings is not None:
        return connector, [
            Problem("settings", "are for a connector given by name; this one has its own options", None, *spot)
        ]
    if not isinstance(connector, base):
        what = f"must be a {kind} connector, not {describe_value(connector)}"
        return None, [Problem("connector", what, f"connectors derive from conduit_py.sdk.{base.__name__}", *spot)]
    return connector, plugin_problems(connector, "connector", spot)


def resolve_outbox(
    outbox: object, place: Place | None
) -> tuple[dict[str, sdk.DestinationConnector[sdk.Options]], list[Problem]]:
    """Return the targets of an outbox, each with its connector; and their problems."""
    if outbox is None:
        return {}, []
    spot = place or (None, None)
    if not isinstance(outbox, Mapping):
        hint = 'write outbox={"a-target": a destination connector}'
        return {}, [Problem("outbox", f"must be a mapping, not {describe_value(outbox)}", hint, *spot)]
    targets: dict[str, sdk.DestinationConnector[sdk.Options]] = {}
    problems: list[Problem] = []
    for target, given in outbox.items():
        if not isinstance(target, str) or not target:
            problems.append(Problem("outbox", f"a target must have a name, not {target!r}", None, *spot))
            continue
        connector, found = resolve_connector("destination", sdk.DestinationConnector, given, None, place)
        problems += [at(problem, f"outbox.{target}") for problem in found]
        if connector is not None:
            targets[target] = connector
    return targets, problems


def plugin_problems(plugin: Plugin[sdk.Options], path: str, spot: tuple[str | None, int | None]) -> list[Problem]:
    """Return the problems of the options of a plugin."""
    # A subclass with an `__init__` of its own that does not call ours has no such attribute.
    if hasattr(plugin, "problems"):
        kind: Any = type(plugin)
        return list(plugin.problems) + [Problem(path, *found, *spot) for found in _never_called(kind)]
    hint = "call super().__init__(**options), or declare options and leave __init__ out"
    return [Problem(path, f"{type(plugin).__qualname__}.__init__ does not pass its options on", hint, *spot)]


_MEANT = {
    **dict.fromkeys(("aclose", "cleanup", "disconnect", "dispose", "shutdown", "tear_down"), "teardown"),
    **dict.fromkeys(("initialise", "initialize", "set_up", "setup"), "open"),
    **dict.fromkeys(("acknowledge", "on_ack"), "ack"),
    "flush_all": "flush",
}
"""What other frameworks call our methods."""


@functools.cache
def _never_called(kind: type[Any]) -> list[tuple[str, str]]:
    """Return what to say about each method that looks like one of ours, which the class does not have itself.

    It would never be called, and nothing would show that: a connection that is not closed, a position not acked.
    """
    ours = next(base for base in _FACES if issubclass(kind, base))
    known = [name for name in dir(ours) if not name.startswith("_") and callable(getattr(ours, name))]
    own = [base for base in kind.__mro__ if base not in ours.__mro__ and not base.__module__.startswith("conduit_py.")]
    written = {name: value for base in own for name, value in vars(base).items() if not name.startswith("_")}
    meant = _MEANT | ({"teardown": "close"} if ours is sdk.Processor else {"close": "teardown"})
    found = []
    for name, value in written.items():
        if hasattr(ours, name) or not callable(value) or isinstance(value, type):
            continue
        near = meant.get(name) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), None)
        near = "close" if near == "teardown" and ours is sdk.Processor else near
        # A class that has the method as well calls this one from there.
        if near in known and near not in written:
            what = f"{kind.__qualname__}.{name} is never called: the SDK has no such method"
            found.append((what, f"did you mean {near!r}? If it is your own, begin its name with _"))
    return found


_FACES: tuple[type[Any], ...] = (sdk.SourceConnector, sdk.DestinationConnector, sdk.Processor, Plugin)


def resolve_processor(
    item: object, settings: Mapping[str, object] | None, place: Place | None, *, asyncio: bool = False
) -> tuple[sdk.Processor[sdk.Options] | None, list[Problem]]:
    """Return the processor of a definition, given as an object, a function or by name, or None; and its problems."""
    spot = place or (None, None)
    if isinstance(item, str):
        item, problems = _by_name("processor", "processor", item, settings, place)
        if problems:
            return None, problems
    # Before the test for a function: a class can be called too, and every record would become an object of it.
    if isinstance(item, type):
        hint = f"write {item.__name__}(…) with its options"
        return None, [Problem("processor", f"is the class {item.__name__}, not a processor", hint, *spot)]
    if callable(item) and not isinstance(item, sdk.Processor):
        item = FunctionProcessor(item)
    if isinstance(item, sdk.Processor):
        if asyncio:
            # A copy: the same object may be used elsewhere, on trio.
            item = copy(item)
            item.asyncio = True
        return item, plugin_problems(item, "processor", spot) + table_problems(item) + _asyncio_problems(item, spot)
    return None, [Problem("processor", f"must be a function or a processor, not {describe_value(item)}", None, *spot)]


def _asyncio_problems(processor: sdk.Processor[sdk.Options], spot: tuple[str | None, int | None]) -> list[Problem]:
    """Return the problem of a processor that asks for asyncio and has nothing that could run on it."""
    if not processor.asyncio or any(is_coroutine_function(getattr(processor, name)) for name in ASYNC_METHODS):
        return []
    what, hint = "is for async functions, and this one is not", "leave it out: a plain function may call asyncio.run"
    return [Problem("asyncio", what, hint, *spot)]


def _by_name(
    kind: registry.Kind, path: str, name: str, settings: Mapping[str, object] | None, place: Place | None
) -> tuple[object, list[Problem]]:
    """Return the plugin with this name. Raises if it is installed but cannot be imported: that is no problem of the
    definition.
    """
    try:
        return registry.find(kind, name)(**(settings or {})), []
    except registry.UnknownPlugin as unknown:
        return None, [Problem(path, unknown.message, unknown.suggestion, *(place or (None, None)))]


def describe_value(value: object) -> str:
    """Return what an error message calls a wrong value."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    for kind, name in ((sdk.SourceConnector, "source"), (sdk.DestinationConnector, "destination")):
        if isinstance(value, kind):
            return f"a {name} connector"
    # The default repr has only the type and an address.
    return repr(value) if type(value).__repr__ is not object.__repr__ else f"a {type(value).__qualname__}"

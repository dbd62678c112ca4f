"""Plugins of a YAML file: found by the name in a section, and made with its settings."""

import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from conduit_py import sdk
from conduit_py.config.conduit_settings import translate
from conduit_py.config.translation import Translation
from conduit_py.config.yaml_section import PluginSettings, Section
from conduit_py.defaults import ID_PATTERN, NODE_ID_LENGTH_MAX
from conduit_py.errors import EnvironmentUnfit
from conduit_py.graph.compile import taken_id
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Place, Plugin

ItemT = TypeVar("ItemT", bound=Any)


@dataclass(frozen=True)
class ReadPlugin:
    """A plugin and its settings, translated but not reported yet."""

    section: Section
    plugin: type[Plugin[Any]]
    settings: PluginSettings
    translation: Translation

    def make(self) -> Plugin[Any] | None:
        """The plugin with its options, or None. Reports all problems and warnings about its settings."""
        diagnostics, settings = self.section.context.diagnostics, self.settings
        for found in self.translation.problems:
            # A setting that could not be read seems missing as well; the better message is reported already.
            if not settings.is_unreadable(found.setting):
                location = settings.location_of(found.setting)
                diagnostics.problem(f"{settings.path}.{found.setting}", location, found.message, found.suggestion)
        for found in self.translation.warnings:
            location = settings.location_of(found.setting)
            diagnostics.warn(f"{settings.path}.{found.setting}", location, found.message, found.suggestion)
        if self.translation.problems:
            return None
        return set_place(self.plugin(**self.translation.options), self.section)


def read_plugin(
    section: Section, kind: registry.Kind, *, name: str | None = None, key: str = "plugin"
) -> ReadPlugin | None:
    """The plugin that the key names, else `name`, with its settings; None when there is no such plugin."""
    settings = section.settings("settings")
    named = section.text(key, required=name is None) or name
    plugin = _find(section, kind, key, named) if named else None
    if plugin is None or named is None:
        return None
    return ReadPlugin(
        section, plugin, settings, translate(kind, bare_name(named), settings.values, plugin.options_model)
    )


def read_id(section: Section, seen: dict[str, int], length_max: int = NODE_ID_LENGTH_MAX) -> str | None:
    """The id of a section, None if it cannot be used. `seen` has earlier ids and their lines."""
    id = section.text("id", required=True)
    if id is None:
        return None
    if not _ID.fullmatch(id) or len(id) > length_max:
        section.problem("id", f"must be 1 to {length_max} letters, digits, - _ : or . and not {id[:40]!r}")
        return None
    if id in seen:
        section.problem("id", *taken_id(id, f"the one in line {seen[id]}"))
        return None
    seen[id] = section.location_of("id").line
    return id


def set_place(item: ItemT, section: Section) -> ItemT:
    """Record that the item is defined in this section, so that later problems name the right line; report its own."""
    item.place = Place(section.context.diagnostics.file, section.location.line)
    for problem in item.problems:
        section.problem(problem.path, problem.message, problem.suggestion)
    return item


def bare_name(name: str) -> str:
    """The name of a plugin without Conduit's prefix and version."""
    return name.rpartition(":")[2].partition("@")[0]


_ID: Final = re.compile(ID_PATTERN)


def _find(section: Section, kind: registry.Kind, key: str, name: str) -> type[Plugin[Any]] | None:
    if name.startswith("standalone:"):
        hint = f"write {bare_name(name)} to use a plugin of that name that is installed here"
        section.problem(key, "standalone plugins are programs for Conduit and cannot run here", hint)
        return None
    version = name.partition("@")[2]
    if version and version != "latest":
        section.warn(key, f"the version {version} has no effect: the plugin that is installed is used")
    try:
        plugin = registry.find(kind, name)
    except registry.UnknownPlugin as unknown:
        section.problem(key, unknown.message, unknown.suggestion)
        return None
    except EnvironmentUnfit as unfit:
        section.problem(key, unfit.message, unfit.suggestion)
        return None
    if not issubclass(plugin, _CLASSES[kind]):
        section.problem(key, f"the plugin {bare_name(name)!r} is not a {kind}")
        return None
    return plugin


_CLASSES: Final[dict[registry.Kind, type[Any]]] = {
    "source": sdk.SourceConnector,
    "destination": sdk.DestinationConnector,
    "processor": sdk.Processor,
}

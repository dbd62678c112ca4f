"""Plugins of a YAML file: what a section names, found and given its options."""

import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from conduit_py import sdk
from conduit_py.config.settings.translate import translate
from conduit_py.config.settings.translation import Translation
from conduit_py.config.yaml_section import PluginSettings, Section
from conduit_py.errors import EnvironmentUnfit
from conduit_py.sdk import registry
from conduit_py.sdk.options import Place
from conduit_py.sdk.plugin import Plugin

ItemT = TypeVar("ItemT", bound=Any)
NODE_ID_LENGTH_MAX: Final = 256


@dataclass(frozen=True)
class ReadPlugin:
    """A plugin and its settings while they are looked at."""

    section: Section
    plugin: type[Plugin[Any]]
    settings: PluginSettings
    translation: Translation

    def make(self) -> Plugin[Any] | None:
        """The plugin with its options, after everything remarked about its settings has become a finding."""
        diagnostics, settings = self.section.under.diagnostics, self.settings
        for remark in self.translation.problems:
            # A setting that could not be read is missing too, but that has been said better.
            if not settings.is_unreadable(remark.setting):
                spot = settings.spot_of(remark.setting)
                diagnostics.problem(f"{settings.path}.{remark.setting}", spot, remark.message, remark.suggestion)
        for remark in self.translation.warnings:
            spot = settings.spot_of(remark.setting)
            diagnostics.warn(f"{settings.path}.{remark.setting}", spot, remark.message, remark.suggestion)
        if self.translation.problems:
            return None
        return set_place(self.plugin(**self.translation.options), self.section)


def read_plugin(
    section: Section, kind: registry.Kind, *, name: str | None = None, key: str = "plugin"
) -> ReadPlugin | None:
    """The plugin that the key names, else `name`, with its settings; None when there is no such plugin."""
    settings = section.settings("settings")
    written = section.text(key, required=name is None) or name
    plugin = _find(section, kind, key, written) if written else None
    if plugin is None or written is None:
        return None
    return ReadPlugin(section, plugin, settings, translate(kind, bare(written), settings.values, plugin.options_model))


def read_id(section: Section, seen: dict[str, int], length_max: int = NODE_ID_LENGTH_MAX) -> str | None:
    """The id of a section, None if it cannot be used. `seen` has the lines of those that stood before."""
    id = section.text("id", required=True)
    if id is None:
        return None
    if not _ID.fullmatch(id) or len(id) > length_max:
        section.problem("id", f"must be 1 to {length_max} letters, digits, - _ : or . and not {id[:40]!r}")
        return None
    if id in seen:
        section.problem("id", f"the id {id!r} stands twice, first in line {seen[id]}", "give each an id of its own")
        return None
    seen[id] = section.spot_of("id").line
    return id


def set_place(item: ItemT, section: Section) -> ItemT:
    """The item as written down in this section, so that whatever is said about it later names the right line."""
    item.place = Place(section.under.diagnostics.file, section.spot.line)
    for problem in item.problems:
        section.problem(problem.path, problem.message, problem.suggestion)
    return item


def bare(name: str) -> str:
    """The name of a plugin without Conduit's prefix and version."""
    return name.rpartition(":")[2].partition("@")[0]


_ID: Final = re.compile(r"[A-Za-z0-9_.:-]+")


def _find(section: Section, kind: registry.Kind, key: str, name: str) -> type[Plugin[Any]] | None:
    if name.startswith("standalone:"):
        hint = f"write {bare(name)} to use a plugin of that name that is installed here"
        section.problem(key, "standalone plugins are programs of Conduit's and cannot be run here", hint)
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
        section.problem(key, f"the plugin {bare(name)!r} is no {kind}")
        return None
    return plugin


_CLASSES: Final[dict[registry.Kind, type[Any]]] = {
    "source": sdk.SourceConnector,
    "destination": sdk.DestinationConnector,
    "processor": sdk.Processor,
}

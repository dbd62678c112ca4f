"""Section: a mapping of a YAML document, read key by key. What does not fit is reported to the diagnostics."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import yaml

from conduit_py.config.interpolation import Interpolator, Resolved
from conduit_py.config.translation import Setting
from conduit_py.config.yaml_document import Diagnostics, Document, DocumentTooLarge, Location
from conduit_py.sdk.plugin import did_you_mean

ENTRIES_MAX: Final = 100_000
"""Aliases let a few lines stand for billions of entries; more than this is no pipeline."""


class DocumentContext:
    """What all sections of one document share; it also counts the entries that they read."""

    def __init__(self, document: Document, diagnostics: Diagnostics, interpolator: Interpolator) -> None:
        self.document = document
        self.diagnostics = diagnostics
        self.interpolator = interpolator
        self._entries = 0

    def count(self) -> None:
        """Count one entry; raises DocumentTooLarge when there are too many."""
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise DocumentTooLarge(f"it has more than {ENTRIES_MAX} entries")


class Section:
    """The keys of a mapping. A key that is not among `known` is a warning, a duplicate one a problem."""

    def __init__(self, node: yaml.MappingNode, path: str, known: Sequence[str], context: DocumentContext) -> None:
        self.path = path
        self.context = context
        self.location = context.document.location(node)
        self._entries = dict(self._read(node))
        for name, (key, _) in self._entries.items():
            if name not in known:
                hint = did_you_mean(name, list(known)) or f"keys are {', '.join(known)}"
                context.diagnostics.warn(
                    self.at(name), self._location(key), "there is no such key, so it has no effect", hint
                )

    def at(self, name: str) -> str:
        """The path of a key below this section."""
        return ".".join(filter(None, (self.path, name)))

    def location_of(self, name: str) -> Location:
        """Where the value of a key is; where this section is for a key that is missing."""
        entry = self._entries.get(name)
        return self._location(entry[1]) if entry else self.location

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return name in self._entries and self._entries[name][1].tag != _NULL

    def text(self, name: str, *, required: bool = False, length_max: int | None = None) -> str | None:
        """The text of a key with its references resolved; None when it is missing or empty."""
        resolved = self._resolve(name)
        if resolved is None:
            return None  # The problem is reported already.
        if length_max is not None and len(resolved.text) > length_max:
            self.problem(name, f"must have at most {length_max} characters, not {len(resolved.text)}")
        if required and not resolved.text.strip():
            self.problem(name, "is required", f"add {name}: …")
        return resolved.text or None

    def template(self, name: str) -> str | None:
        """The text of a key that holds a template, whose references may be secrets."""
        resolved = self._resolve(name, setting=True)
        return resolved.text if resolved and resolved.text.strip() else None

    def whole(self, name: str, default: int) -> int:
        """A whole number, 0 or more."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX:
            self.problem(name, f"must be a whole number, 0 or more, not {text[:40]!r}")
            return default
        return int(text)

    def flag(self, name: str) -> bool:
        """True or false; false by default."""
        text = self.text(name)
        if text not in (None, "true", "false"):
            self.problem(name, f"must be true or false, not {text[:40]!r}")
        return text == "true"

    def settings(self, name: str) -> "PluginSettings":
        """The text values of a mapping, by key."""
        node = self._value(name)
        if node is None:
            return PluginSettings({}, {}, self.at(name), self.location)
        if not isinstance(node, yaml.MappingNode):
            self.problem(name, f"must be a mapping, not {_describe_node(node)}", "write `name: value` lines below it")
            return PluginSettings({}, {}, self.at(name), self._location(node))
        values: dict[str, Setting] = {}
        locations: dict[str, Location] = {}
        for key, (_, value) in dict(self._read(node)).items():
            resolved = self._scalar(value, self.at(name), key, setting=True)
            locations[key] = self._location(value)
            if resolved is not None:
                values[key] = Setting(resolved.text, resolved.secret)
        return PluginSettings(values, locations, self.at(name), self._location(node))

    def section(self, name: str, known: Sequence[str]) -> "Section | None":
        """The mapping below a key."""
        node = self._value(name)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.problem(name, f"must be a mapping, not {_describe_node(node)}", f"keys are {', '.join(known)}")
            return None
        return Section(node, self.at(name), known, self.context)

    def sections(self, name: str, known: Sequence[str]) -> "list[Section]":
        """The mappings in the list below a key, each with its id, if it has one, as its path."""
        node = self._value(name)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            hint = "begin each entry with `- id: …`; mappings by name are of version 1"
            self.problem(name, f"must be a list, not {_describe_node(node)}", hint)
            return []
        return list(self._sections(node, self.at(name), known))

    def _sections(self, node: yaml.SequenceNode, path: str, known: Sequence[str]) -> "Iterator[Section]":
        for index, item in enumerate(node.value):
            self.context.count()
            if isinstance(item, yaml.MappingNode):
                yield Section(item, _entry_path(item, path, index), known, self.context)
            else:
                message = f"must be a mapping, not {_describe_node(item)}"
                self.context.diagnostics.problem(
                    f"{path}[{index}]", self._location(item), message, "begin with `- id: …`"
                )

    def problem(self, name: str, message: str, suggestion: str | None = None) -> None:
        self.context.diagnostics.problem(self.at(name), self.location_of(name), message, suggestion)

    def problem_within(self, name: str, line: int, message: str, suggestion: str | None = None) -> None:
        """A problem in a line of a text, counted from 0. The line is known only for a literal block (`|`)."""
        location = self.location_of(name)
        entry = self._entries.get(name)
        # In any other style YAML joins lines, so the line within the text is not one of the file.
        if entry and isinstance(entry[1], yaml.ScalarNode) and entry[1].style == "|":
            location = Location(location.line + 1 + line, 1)
        self.context.diagnostics.problem(self.at(name), location, message, suggestion)

    def warn(self, name: str, message: str, suggestion: str | None = None) -> None:
        self.context.diagnostics.warn(self.at(name), self.location_of(name), message, suggestion)

    def _location(self, node: yaml.Node) -> Location:
        return self.context.document.location(node)

    def _value(self, name: str) -> yaml.Node | None:
        return self._entries[name][1] if self.has(name) else None

    def _resolve(self, name: str, *, setting: bool = False) -> Resolved | None:
        node = self._value(name)
        return Resolved() if node is None else self._scalar(node, self.path, name, setting=setting)

    def _scalar(self, node: yaml.Node, above: str, name: str, *, setting: bool) -> Resolved | None:
        """The text of a node; None, with a problem reported, when it has no usable text."""
        diagnostics, interpolator = self.context.diagnostics, self.context.interpolator
        path = ".".join(filter(None, (above, name)))
        if not isinstance(node, yaml.ScalarNode):
            diagnostics.problem(
                path, self._location(node), f"must be text, not {_describe_node(node)}", _text_hint(node, name)
            )
            return None
        if node.tag == _NULL:
            return Resolved()
        # No tag is applied: a text must reach the plugin as it is written, 007 and 1e3 included.
        if node.tag not in _TEXT_TAGS:
            diagnostics.problem(path, self._location(node), f"the tag {_tag(node)} is not supported", "leave it out")
            return None
        # Only settings may be secret: an id or a name is shown in metrics and on the page.
        resolved = interpolator.resolve_setting(node.value) if setting else interpolator.resolve(node.value)
        for problem in resolved.problems:
            diagnostics.problem(path, self._location(node), *problem)
        for bare in resolved.bare:
            hint = f"write ${{{bare}}} for the environment variable, or $${bare} for this text"
            diagnostics.warn(
                path, self._location(node), f"${bare} is not replaced here, although Conduit replaces it", hint
            )
        return None if resolved.problems else resolved

    def _read(self, node: yaml.MappingNode, depth: int = 0) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
        """The entries of a mapping: first those that it merges from others (`<<`), then its own."""
        own: dict[str, yaml.Node] = {}
        entries: list[tuple[str, tuple[yaml.Node, yaml.Node]]] = []
        for key, value in node.value:
            self.context.count()
            if key.tag == _MERGE:
                yield from self._merge(value, depth)
            elif not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXT_TAGS:
                self.context.diagnostics.problem(
                    self.path, self._location(key), f"a key must be text, not {_describe_node(key)}"
                )
            elif key.value in own:
                first = self._location(own[key.value]).line
                message = f"is there twice, first in line {first}"
                self.context.diagnostics.problem(self.at(key.value), self._location(key), message)
            else:
                own[key.value] = key
                entries.append((key.value, (key, value)))
        yield from entries

    def _merge(self, value: yaml.Node, depth: int) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        # Reversed, because later entries replace earlier ones and the first merged mapping must win.
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode) or depth == _MERGES_MAX:
                what = "is merged too deeply" if isinstance(source, yaml.MappingNode) else "must merge a mapping"
                self.context.diagnostics.problem(self.at("<<"), self._location(value), what)
                return
            yield from self._read(source, depth + 1)


class PluginSettings(NamedTuple):
    """The settings of a plugin, the location of each, and that of the whole mapping."""

    values: dict[str, Setting]
    locations: dict[str, Location]
    path: str
    location: Location

    def location_of(self, name: str) -> Location:
        return self.locations.get(name, self.location)

    def is_unreadable(self, name: str) -> bool:
        """Whether the setting is there but has no usable text."""
        return name in self.locations and name not in self.values


_CORE: Final = "tag:yaml.org,2002:"
_NULL: Final = f"{_CORE}null"
_MERGE: Final = f"{_CORE}merge"
_TEXT_TAGS: Final = {f"{_CORE}{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "value")}
# An anchor can be merged into itself.
_MERGES_MAX: Final = 10
# int() of a very long text takes quadratic time.
_DIGITS_MAX: Final = 9


def _entry_path(node: yaml.MappingNode, path: str, index: int) -> str:
    ids = [value.value for key, value in node.value if isinstance(value, yaml.ScalarNode) and key.value == "id"]
    return f"{path}.{ids[0]}" if ids and _ID.fullmatch(ids[0]) else f"{path}[{index}]"


_ID = re.compile(r"[A-Za-z0-9_.:-]{1,256}")


def _describe_node(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "nothing" if node.tag == _NULL else f"{node.value[:40]!r}"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_CORE, "!!")[:40]


def _text_hint(node: yaml.Node, name: str) -> str:
    """YAML reads unquoted braces as a mapping, and their content as a key."""
    if isinstance(node, yaml.MappingNode) and any(isinstance(key, yaml.MappingNode) for key, _ in node.value):
        return "put a template in single quotes: '{{ … }}'"
    if isinstance(node, yaml.SequenceNode):
        if any(isinstance(entry, yaml.MappingNode) for entry in node.value):
            return f"write `{name}.0.NAME: …` for each key of the first entry, and so on"
        return "write a list as one text, with commas"
    return f"write `{name}.NAME: …` for each key inside of it"

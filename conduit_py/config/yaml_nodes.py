"""The connectors, processors and dead-letter queue of a YAML file as the nodes of a pipeline.

Their plugins are found by the name in a section, and made with its settings.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from conduit_py import sdk
from conduit_py.config.conduit_settings import refuse_avro, translate
from conduit_py.config.translation import Translation
from conduit_py.config.yaml_section import PluginSettings, Section
from conduit_py.defaults import ID_PATTERN, NODE_ID_LENGTH_MAX, WORKERS_MAX
from conduit_py.errors import EnvironmentUnfit, RecordRefused
from conduit_py.graph.compile import taken_id
from conduit_py.pipeline import DeadLetters, Destination, Processor, Source
from conduit_py.pipeline_settings import Delivery, DestinationSettings, ProcessorSettings, RateLimit, SourceSettings
from conduit_py.record import Payload, Record
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Options, Place, Plugin, check_options, did_you_mean
from conduit_py.sdk.processor import Condition, FunctionProcessor
from conduit_py.sdk.template import Template, TemplateInvalid, condition_of

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


LIMIT_KEYS: Final = {
    "source": ["batch-size", "window"],
    "destination": ["batch-size", "batch-bytes", "batch-seconds"],
    "processor": ["batch-size", "batch-seconds", "state-cache-bytes"],
}
SOURCE_KEYS: Final = ["atomic", "schedule", "timezone", "window"]
CONNECTOR_KEYS: Final = [
    *("id", "type", "plugin", "name", "settings", "processors", "rate"),
    *dict.fromkeys([*SOURCE_KEYS, *LIMIT_KEYS["destination"]]),
]
RATE_KEYS: Final = [name.replace("_", "-") for name in RateLimit.model_fields]
PROCESSOR_KEYS: Final = ["id", "plugin", "condition", "settings", "workers", "where", *LIMIT_KEYS["processor"], "type"]
QUEUE_KEYS: Final = ["plugin", "settings", "window-size", "window-nack-threshold"]
NAME_LENGTH_MAX: Final = 256
DEFAULT_QUEUE: Final = "log"
DEFAULT_QUEUE_OPTIONS: Final = {"level": "warning", "message": "record delivery failed"}
BEFORE_TYPE_WAS_PLUGIN: Final = ("2.0", "2.1")


class Connectors:
    """The sources and destinations of a pipeline; those with problems are left out."""

    def __init__(self, section: Section, version: str) -> None:
        self.sources: list[Source] = []
        self.destinations: list[Destination] = []
        self.ids: dict[str, int] = {}
        """The ids of all connectors, with their lines."""
        self.kinds: set[str] = set()
        """The kinds of all connectors, including those with problems."""
        self._version = version
        read = [self._read(each) for each in section.sections("connectors", CONNECTOR_KEYS)]
        plugins = [each for each in read if each is not None]
        # After all are read: what a destination receives depends on every source before it.
        sources = [each.plugin.translation for each in plugins if each.kind == "source"]
        for each in plugins:
            if each.kind == "destination":
                refuse_avro(sources, each.plugin.translation)
            self._add(each)

    def _read(self, section: Section) -> "_ReadConnector | None":
        # All keys are read even if the id is wrong, so that all problems are reported at once.
        id = read_id(section, self.ids)
        section.text("name", length_max=NAME_LENGTH_MAX)
        kind = _kind(section)
        # A connector of an unknown type may be either: do not also report that the pipeline has none of that kind.
        self.kinds |= {kind} if kind else {"source", "destination"}
        plugin = read_plugin(section, kind) if kind else None
        processors = read_processors(section, self._version)
        own = {"atomic": section.flag("atomic"), "schedule": section.text("schedule")} if kind == "source" else {}
        own |= {"timezone": section.text("timezone")} if kind == "source" else {}
        own |= _read_limits(section, kind) if kind else {}
        for key in {"source": ("batch-bytes", "batch-seconds"), "destination": SOURCE_KEYS}.get(kind or "", ()):
            if section.has(key):
                section.problem(key, f"is a setting of {'sources' if kind == 'destination' else 'destinations'}")
        return _ReadConnector(id, kind, plugin, processors, own) if kind and plugin else None

    def _add(self, read: "_ReadConnector") -> None:
        section, translation = read.plugin.section, read.plugin.translation
        connector = read.plugin.make()
        if connector is None or read.id is None:
            return
        if isinstance(connector, sdk.SourceConnector):
            source = Source(read.id, connector, processors=read.processors, **{**translation.limits, **read.own})
            self.sources.append(set_place(source, section))
        elif isinstance(connector, sdk.DestinationConnector):
            lines = [set_place(line_processor(translation.line), section)] if translation.line is not None else []
            limits = {**translation.limits, **read.own}
            destination = Destination(read.id, connector, processors=[*read.processors, *lines], **limits)
            self.destinations.append(set_place(destination, section))


class _ReadConnector(NamedTuple):
    id: str | None
    kind: registry.Kind
    plugin: ReadPlugin
    processors: list[Processor]
    own: dict[str, Any]
    """Its settings as a node, by name."""


def _read_limits(section: Section, kind: registry.Kind) -> dict[str, Any]:
    """How much a node reads, writes or processes at once and in a second; only what is given and right."""
    texts = {key: section.text(key) for key in LIMIT_KEYS[kind]}
    given = {key.replace("-", "_"): text for key, text in texts.items() if text is not None}
    models: dict[str, type[Options]] = {"source": SourceSettings, "processor": ProcessorSettings}
    limits = _check(section, models.get(kind, DestinationSettings), {"id": "any", **given}, given)
    if kind != "processor" and (inner := section.section("rate", RATE_KEYS)) is not None:
        texts = {key.replace("-", "_"): inner.text(key) for key in RATE_KEYS}
        rate = _check(inner, RateLimit, {key: text for key, text in texts.items() if text is not None}, texts)
        limits |= {"rate": RateLimit(**rate)} if rate else {}
    return limits


def _check(section: Section, model: type[Options], values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the checked values of these names; nothing if there are problems, which are reported."""
    checked, problems = check_options(model, values, None)
    for problem in problems:
        section.problem(problem.path.replace("_", "-"), problem.message.replace("s_per_s", "s-per-s"))
    return {} if checked is None else {name: getattr(checked, name) for name in names}


def _kind(section: Section) -> registry.Kind | None:
    kind = section.text("type", required=True)
    if kind == "source":
        return "source"
    if kind == "destination":
        return "destination"
    if kind is not None:
        hint = did_you_mean(kind.strip().lower(), ["source", "destination"])
        section.problem("type", f"must be source or destination, not {kind[:40]!r}", hint)
    return None


def read_processors(section: Section, version: str) -> list[Processor]:
    """The processors in the list of a section, in order; those with problems are left out."""
    seen: dict[str, int] = {}
    read = [_processor(each, version, seen) for each in section.sections("processors", PROCESSOR_KEYS)]
    return [processor for processor in read if processor is not None]


def read_dead_letters(section: Section | None, delivery: Delivery) -> DeadLetters | None:
    """As in Conduit: by default a log, which the first refused record never reaches because it stops the pipeline."""
    if section is None:
        # Stopping at the first is the same, and a log could not keep the promise of such a delivery.
        if delivery != "at_least_once":
            return DeadLetters("stop")
        return DeadLetters(_default_queue(), window_size=1, window_nack_threshold=0)
    handler = _queue(section)
    size, threshold = section.whole("window-size", 1), section.whole("window-nack-threshold", 0)
    if size and threshold >= size:
        hint = f"set window-size to {threshold + 1} or more, or to 0 for no limit"
        section.problem("window-nack-threshold", f"must be below window-size, which is {size}", hint)
        return None
    if handler is None:
        return None
    return set_place(DeadLetters(handler, window_size=size, window_nack_threshold=threshold if size else 0), section)


def line_processor(template: Template) -> Processor:
    """Renders each record as a line for a destination that writes lines."""

    def line(record: Record) -> Record:
        try:
            text = template.render(record).encode()
        # A lone surrogate in one record: that record is refused, the pipeline goes on.
        except UnicodeEncodeError as error:
            raise RecordRefused(f"cannot be written as UTF-8: {error}") from None
        return Record(record.position, record.operation, record.metadata, record.key, Payload(None, text))

    return Processor("sdk.record.format", FunctionProcessor(line, name="template"))


def _processor(section: Section, version: str, seen: dict[str, int]) -> Processor | None:
    id = read_id(section, seen)
    read = read_plugin(section, "processor", key=_plugin_key(section, version))
    workers = section.whole("workers", 0) or 1
    if workers > WORKERS_MAX:
        section.problem("workers", f"must be at most {WORKERS_MAX}, not {workers}")
        return None
    where: Any = section.text("where")
    if where not in (None, "thread", "process"):
        section.problem("where", f"must be thread or process, not {where[:40]!r}")
        return None
    # Both are read before either is refused, so that all problems are reported at once.
    condition, limits = _condition(section, version), _read_limits(section, "processor")
    plugin = read.make() if read is not None else None
    if id is None or not isinstance(plugin, sdk.Processor):
        return None
    return set_place(Processor(id, plugin, workers=workers, where=where, when=condition, **limits), section)


def _plugin_key(section: Section, version: str) -> str:
    """The key is `plugin` since version 2.2; before it was `type`, which still works."""
    if section.has("plugin"):
        if version in BEFORE_TYPE_WAS_PLUGIN:
            section.warn("plugin", "came with version 2.2", "set version to 2.2")
        return "plugin"
    if not section.has("type"):
        return "plugin"
    if version not in BEFORE_TYPE_WAS_PLUGIN:
        section.warn("type", "is deprecated", "write plugin instead")
    return "type"


def _condition(section: Section, version: str) -> Condition | None:
    text = section.template("condition")
    if text is None:
        return None
    if version == "2.0":
        section.warn("condition", "came with version 2.1", "set version to 2.2")
    try:
        return condition_of(text)
    except TemplateInvalid as invalid:
        section.problem_within("condition", invalid.line(text), invalid.describe(text), invalid.suggestion)
        return None


def _queue(section: Section) -> sdk.DestinationConnector[Any] | Literal["journal"] | None:
    named = (section.text("plugin") or DEFAULT_QUEUE).removeprefix("builtin:")
    # Ours, not Conduit's: dead letters that can be listed, edited and sent again.
    if named == "journal":
        if section.has("settings"):
            section.problem("settings", "the journal has none", "leave them out")
            return None
        return "journal"
    if named == DEFAULT_QUEUE and not section.has("settings"):
        return _default_queue()
    read = read_plugin(section, "destination", name=DEFAULT_QUEUE)
    if read is None:
        return None
    if read.translation.line is not None:
        read.translation.problem("sdk.record.format", "dead letters are written as whole records", "leave it out")
    for name in read.translation.settings if read.translation.limits else ():
        if name.startswith(("sdk.batch.", "sdk.rate.")):
            read.translation.warn(name, "has no effect: dead letters are written as they come")
    plugin = read.make()
    return plugin if isinstance(plugin, sdk.DestinationConnector) else None


def _default_queue() -> sdk.DestinationConnector[Any]:
    queue = registry.find("destination", DEFAULT_QUEUE)(**DEFAULT_QUEUE_OPTIONS)
    assert isinstance(queue, sdk.DestinationConnector)
    return queue

"""translate: the settings of a Conduit plugin, which are all text, as options of ours.

The first settings are those that Conduit's SDK adds to every plugin (`sdk.…`). Then comes what differs between
Conduit's plugins and ours. Last are the settings that are options of ours by name. A setting of the SDK that would
change the data is a problem. One that concerns only the inside of Conduit applies where it has a meaning here.
Elsewhere it is a warning, unless it has its default value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from conduit_py.config.translation import Setting, Translation, adopt_options
from conduit_py.pipeline_settings import RateLimit
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.registry import Kind
from conduit_py.sdk.template import Template, TemplateInvalid


def translate(kind: Kind, plugin: str, settings: Mapping[str, Setting], model: type[Options]) -> Translation:
    """The options that the plugin takes, or everything that is wrong with its settings."""
    translation = Translation(settings)
    _take_sdk_settings(kind, translation)
    translate_plugin = _TRANSLATORS.get((kind, plugin))
    if translate_plugin is not None:
        translate_plugin(translation)
    if translation.line is not None and (kind, plugin) != ("destination", "file"):
        what = "a template is for the file destination only, this one writes whole records"
        translation.problem("sdk.record.format", what, "leave it out")
    # Last, because it reports everything that the others have left as unknown.
    adopt_options(translation, model)
    return translation


_PAYLOAD: Final = "sdk.schema.extract.payload.enabled"
_SCHEMA_TEXTS: Final = {
    "sdk.schema.extract.type": "avro",
    "sdk.schema.extract.payload.subject": "payload",
    "sdk.schema.extract.key.subject": "key",
    "sdk.schema.context.name": "",
}
_SCHEMA_SWITCHES: Final[dict[Kind, list[str]]] = {
    "source": [_PAYLOAD, "sdk.schema.extract.key.enabled", "sdk.schema.context.enabled"],
    "destination": [_PAYLOAD, "sdk.schema.extract.key.enabled"],
    "processor": [
        *("sdk.schema.decode.payload.enabled", "sdk.schema.decode.key.enabled"),
        *("sdk.schema.encode.payload.enabled", "sdk.schema.encode.key.enabled"),
    ],
}
_BATCH: Final = ["sdk.batch.size", "sdk.batch.delay"]
_RATE: Final = ["sdk.rate.perSecond", "sdk.rate.burst"]
_FORMAT: Final = ["sdk.record.format", "sdk.record.format.options"]
_NO_SCHEMAS: Final = "has no effect: records keep their types here without a schema"


def _take_sdk_settings(kind: Kind, translation: Translation) -> None:
    """Take the settings of Conduit's SDK from those of a plugin of this kind."""
    translation.known += _SCHEMA_SWITCHES[kind]
    if kind == "source":
        translation.known += [*_BATCH, *_SCHEMA_TEXTS]
        _source_batches(translation)
        _schema_texts(translation)
    if kind == "destination":
        translation.known += [*_BATCH, *_RATE, *_FORMAT]
        _destination_batches(translation)
        _rate(translation)
        _format(translation)
    _schema_switches(kind, translation)


def _source_batches(translation: Translation) -> None:
    if size := translation.take_number("sdk.batch.size", whole=True):
        translation.limits["batch_size"] = int(size)
    if translation.take_seconds("sdk.batch.delay"):
        translation.warn("sdk.batch.delay", "has no effect: a batch is sent as soon as it has a record")


def _destination_batches(translation: Translation) -> None:
    if size := translation.take_number("sdk.batch.size", whole=True):
        translation.limits["batch_size"] = int(size)
    if seconds := translation.take_seconds("sdk.batch.delay"):
        translation.limits["batch_seconds"] = seconds


def _rate(translation: Translation) -> None:
    rate, burst = translation.take_number("sdk.rate.perSecond"), translation.take_number("sdk.rate.burst", whole=True)
    if rate:
        translation.limits["rate"] = RateLimit(records_per_second=rate, burst=int(burst) if burst else None)
    elif burst:
        translation.warn("sdk.rate.burst", "has no effect without sdk.rate.perSecond")


def _format(translation: Translation) -> None:
    format, options = translation.take("sdk.record.format"), translation.take("sdk.record.format.options")
    if format in (None, "opencdc/json"):
        if options is not None:
            translation.warn("sdk.record.format.options", "has no effect: opencdc/json has no options")
    elif format != "template":
        hint = "formats are opencdc/json and template"
        translation.problem("sdk.record.format", f"must be a supported format{translation.quote(_FORMAT[0])}", hint)
    elif options is None:
        translation.problem("sdk.record.format", "needs a template", "add sdk.record.format.options: '{{ … }}'")
    else:
        try:
            translation.line = Template(options)
        except TemplateInvalid as invalid:
            translation.problem("sdk.record.format.options", invalid.describe(options), invalid.suggestion)


def _schema_texts(translation: Translation) -> None:
    for name, default in _SCHEMA_TEXTS.items():
        text = translation.take(name)
        if text is not None and text != default:
            translation.warn(name, _NO_SCHEMAS)


def _schema_switches(kind: Kind, translation: Translation) -> None:
    for name in _SCHEMA_SWITCHES[kind]:
        enabled = translation.take_boolean(name)
        if enabled is not None:
            translation.switches[name] = enabled
        if enabled is False and kind == "processor":
            translation.warn(name, _NO_SCHEMAS)


def refuse_avro(sources: Sequence[Translation], destination: Translation) -> None:
    """Report a destination that expects Avro: in Conduit, a source that encodes would send it that."""
    if destination.switches.get(_PAYLOAD) is not False:
        return
    if any(source.structured and source.switches.get(_PAYLOAD) is not False for source in sources):
        hint = "leave it out, or set it to false for the sources too"
        destination.problem(_PAYLOAD, "expects payloads in Avro, and payloads are structured data here", hint)


_GENERATOR: Final = [
    *("rate", "recordCount", "readTime", "burst.sleepTime", "burst.generateTime"),
    *("format.type", "format.options", "format.options.path", "operations"),
]


def _translate_generator(translation: Translation) -> None:
    """Ours resumes where it stopped, whereas Conduit's starts over, and `recordCount` ends it instead of waiting."""
    translation.known += _GENERATOR
    _pace(translation)
    count = translation.take_number("recordCount", whole=True)
    if count:
        translation.set("count", int(count), "recordCount")
    _shape(translation, "", ())
    _collections(translation)
    shapes = translation.options.get("shapes", {}).values() or [translation.options]
    translation.structured = any(shape.get("format", "structured") == "structured" for shape in shapes)


def _pace(translation: Translation) -> None:
    rate, read_time = translation.take_number("rate"), translation.take_seconds("readTime")
    if rate and read_time:
        translation.problem("readTime", "cannot be given together with rate", "leave readTime out: it is deprecated")
    elif read_time:
        translation.warn("readTime", "is deprecated", f"write rate: {1 / read_time:g}")
        translation.set("rate", 1 / read_time, "readTime")
    elif rate is not None:
        translation.set("rate", rate, "rate")
    sleep, generate = translation.take_seconds("burst.sleepTime"), translation.take_seconds("burst.generateTime")
    if sleep:
        translation.set(("burst", "sleep_seconds"), sleep, "burst.sleepTime")
        if generate is not None:
            translation.set(("burst", "generate_seconds"), generate, "burst.generateTime")


def _shape(translation: Translation, prefix: str, into: tuple[str, ...]) -> None:
    """Set the shape of the records of one collection."""
    operations = translation.take(f"{prefix}operations")
    if operations is not None:
        chosen = [operation.strip() for operation in operations.split(",")]
        translation.set((*into, "operations"), chosen, f"{prefix}operations")
    format = translation.take(f"{prefix}format.type")
    if format is not None:
        translation.set((*into, "format"), format, f"{prefix}format.type")
    if format == "file":
        path = translation.take(f"{prefix}format.options.path")
        if path is None:
            translation.problem(f"{prefix}format.type", "needs a file", f"add {prefix}format.options.path")
        else:
            translation.set((*into, "path"), path, f"{prefix}format.options.path")
    _fields(translation, prefix, into)


def _fields(translation: Translation, prefix: str, into: tuple[str, ...]) -> None:
    for name, kind in translation.take_below(f"{prefix}format.options.").items():
        translation.set((*into, "fields", name), kind.strip().lower(), f"{prefix}format.options.{name}")
    # The form before 2024, which Conduit's documentation still has in places.
    pairs = translation.take(f"{prefix}format.options")
    for pair in pairs.split(",") if pairs else []:
        name, colon, kind = pair.partition(":")
        if not colon:
            hint = f"write {prefix}format.options.NAME: TYPE for each field"
            translation.problem(f"{prefix}format.options", f"must be pairs such as id:int, not {pair!r}", hint)
            return
        translation.set((*into, "fields", name.strip()), kind.strip().lower(), f"{prefix}format.options")


def _collections(translation: Translation) -> None:
    names = list(dict.fromkeys(_collection_of(name) for name in translation.rest if _collection_of(name)))
    if not names:
        return
    origin = next(name for name in translation.rest if _collection_of(name))
    # A format outside of the collections is that of records without one, which take their turn as well.
    unnamed = [""] if "format" in translation.options else []
    for name in names:
        _shape(translation, f"collections.{name}.", ("shapes", name))
    translation.set("collections", unnamed + names, origin)


def _collection_of(setting: str) -> str:
    """The name after `collections.`, which may contain dots, without the part of the collection that is set."""
    if not setting.startswith("collections."):
        return ""
    inner = setting.removeprefix("collections.")
    ends = [inner.rfind(f".{part}") for part in ("operations", "format.type")]
    ends.append(inner.find(".format.options"))
    return next((inner[:end] for end in ends if end > 0), "")


def _translate_file_source(translation: Translation) -> None:
    """Raw lines, waiting for more at the end, and for the file itself; our own options may say otherwise."""
    translation.known.append("path")
    for option, value in (("tail", True), ("format", "lines")):
        if option not in translation.rest:
            translation.set(option, value, option)


def _translate_file_destination(translation: Translation) -> None:
    """A record in OpenCDC's JSON form a line, or what the template in `sdk.record.format.options` makes of it."""
    translation.known.append("path")
    if translation.line is not None:
        translation.set("format", "lines", "sdk.record.format")
    elif "format" not in translation.rest:
        translation.set("format", "opencdc", "format")


def _translate_log(translation: Translation) -> None:
    """Go's names of levels are not Python's."""
    translation.known += ["level", "message"]
    level = translation.take("level")
    if level is not None:
        translation.set("level", _LEVELS.get(level.lower(), level), "level")


_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "error": "error"}


_REGISTRY: Final = {
    "auth.basic.username": "username",
    "auth.basic.password": "password",
    "tls.ca.cert": "ca_file",
    "tls.client.cert": "cert_file",
    "tls.client.key": "key_file",
}
_SUBJECTS: Final = {"preRegistered": "schema.preRegistered.subject", "autoRegister": "schema.autoRegister.subject"}


def _translate_registry(translation: Translation) -> None:
    """The registry of a processor. Conduit may have it in its own settings; here each processor has its `url`."""
    translation.known += ["url", *_REGISTRY]
    for name, option in _REGISTRY.items():
        text = translation.take(name)
        if text is not None:
            translation.set(option, text, name)


def _translate_avro_encode(translation: Translation) -> None:
    _translate_registry(translation)
    translation.known += ["schema.strategy", *_SUBJECTS.values(), "schema.preRegistered.version"]
    strategy, version = translation.take("schema.strategy"), translation.take("schema.preRegistered.version")
    subjects = {name: translation.take(setting) for name, setting in _SUBJECTS.items()}
    if strategy is not None:
        translation.set("strategy", strategy, "schema.strategy")
    # Conduit ignores what belongs to the other strategy.
    subject = subjects.get(strategy or "preRegistered")
    if subject is not None:
        translation.set("subject", subject, _SUBJECTS[strategy or "preRegistered"])
    if version is not None and strategy != "autoRegister":
        translation.set("version", version, "schema.preRegistered.version")


_WEBHOOK: Final = {
    "request.url": "url",
    "request.method": "method",
    "request.body": "body",
    "response.body": "response_body",
    "response.status": "response_status",
}
_WEBHOOK_DELAYS: Final = {"backoffRetry.min": "retry_min_seconds", "backoffRetry.max": "retry_max_seconds"}
_WEBHOOK_NUMBERS: Final = {"backoffRetry.count": "retry_count", "backoffRetry.factor": "retry_factor"}


def _translate_webhook(translation: Translation) -> None:
    """The headers keep their names; the content type may be given in the old way too."""
    names = [*_WEBHOOK, *_WEBHOOK_DELAYS, *_WEBHOOK_NUMBERS, "request.contentType", "headers.*"]
    translation.known += names
    for name, option in _WEBHOOK.items():
        if (text := translation.take(name)) is not None:
            translation.set(option, text, name)
    for name, option in _WEBHOOK_DELAYS.items():
        if (seconds := translation.take_seconds(name)) is not None:
            translation.set(option, seconds, name)
    for name, option in _WEBHOOK_NUMBERS.items():
        if (number := translation.take_number(name)) is not None:
            translation.set(option, number, name)
    content_type = translation.take("request.contentType")
    if content_type is not None and any(name.lower() == "headers.content-type" for name in translation.rest):
        translation.problem("request.contentType", "cannot be given together with headers.Content-Type", "leave it out")
    elif content_type is not None:
        translation.set(("headers", "Content-Type"), content_type, "request.contentType")


_TRANSLATORS: Final[dict[tuple[Kind, str], Callable[[Translation], None]]] = {
    ("source", "generator"): _translate_generator,
    ("source", "file"): _translate_file_source,
    ("destination", "file"): _translate_file_destination,
    ("destination", "log"): _translate_log,
    ("processor", "avro.decode"): _translate_registry,
    ("processor", "avro.encode"): _translate_avro_encode,
    ("processor", "webhook.http"): _translate_webhook,
}
"""The plugins whose settings differ from our options."""

"""The settings that Conduit's SDK adds to every plugin: `sdk.…`.

A setting that would change the data is a problem. One that concerns only how Conduit works inside applies where it
has a meaning here, and is a warning elsewhere, unless it has its default value.
"""

from collections.abc import Sequence
from typing import Final

from conduit_py.config.settings.translation import Translation
from conduit_py.sdk.registry import Kind
from conduit_py.sdk.template import Template, TemplateInvalid

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


def middleware(kind: Kind, translation: Translation) -> None:
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
    size = translation.take_number("sdk.batch.size", whole=True)
    if size:
        translation.batch_size = int(size)
    if translation.take_seconds("sdk.batch.delay"):
        translation.warn("sdk.batch.delay", "has no effect: a batch is sent as soon as it has a record")


def _destination_batches(translation: Translation) -> None:
    if translation.take_number("sdk.batch.size", whole=True):
        translation.warn("sdk.batch.size", "has no effect: the size of batches follows the load")
    if translation.take_seconds("sdk.batch.delay"):
        translation.warn("sdk.batch.delay", "has no effect: a record is written as soon as it arrives")


def _rate(translation: Translation) -> None:
    if translation.take_number("sdk.rate.perSecond"):
        what = "has no effect: records are written as fast as the destination takes them"
        translation.warn("sdk.rate.perSecond", what, "limit the rate of the source instead, if it has such a setting")
    translation.take_number("sdk.rate.burst", whole=True)


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

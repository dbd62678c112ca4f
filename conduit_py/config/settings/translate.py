"""translate: the settings of a plugin as its options, and what differs between Conduit's plugins and ours."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conduit_py.config.settings.middleware import middleware
from conduit_py.config.settings.translation import Setting, Translation, seconds_of
from conduit_py.sdk.plugin import Options, did_you_mean
from conduit_py.sdk.registry import Kind


def translate(kind: Kind, plugin: str, settings: Mapping[str, Setting], model: type[Options]) -> Translation:
    """The options that the plugin takes, or everything that is wrong with its settings."""
    translation = Translation(settings)
    middleware(kind, translation)
    translate_plugin = _TRANSLATORS.get((kind, plugin))
    if translate_plugin is not None:
        translate_plugin(translation)
    if translation.line is not None and (kind, plugin) != ("destination", "file"):
        what = "a template is for the file destination only, this one writes whole records"
        translation.problem("sdk.record.format", what, "leave it out")
    # Last, because it reports everything that the others have left as unknown.
    _adopt_options(translation, model)
    return translation


def _adopt_options(translation: Translation, model: type[Options]) -> None:
    """Take the settings that are options of the plugin, report the others as unknown, and check all options.

    Text is converted to the type of the option: a number, a boolean, a list from text with commas, seconds
    from a duration such as 1m30s.
    """
    for name in list(translation.rest):
        head, _, inner = name.partition(".")
        if name in model.model_fields:
            translation.set(name, translation.take(name), name)
        elif inner and head in model.model_fields:
            translation.set((head, inner), translation.take(name), name)
        else:
            _unknown(translation, name, [*translation.known, *model.model_fields])
    for error in _errors(model, translation.options):
        _report(translation, model, error)


def _unknown(translation: Translation, name: str, known: list[str]) -> None:
    translation.take(name)
    names = sorted(set(known))
    # Conduit's SDK adds many to every plugin, and they are seldom the right ones.
    shown = [each for each in names if not each.startswith("sdk.")]
    listed = f"settings are {', '.join(shown)}" if shown else "it takes none"
    translation.problem(name, "there is no such setting", did_you_mean(name, names) or listed)


def _errors(model: type[Options], options: dict[str, Any]) -> list[ErrorDetails]:
    errors = _validation_errors(model, options)
    converted = [_convert_text(options, error) for error in errors]
    # Checked again: what was converted may still be out of range.
    return _validation_errors(model, options) if any(converted) else errors


def _validation_errors(model: type[Options], options: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        model(**options)
    except ValidationError as invalid:
        return invalid.errors(include_url=False)
    return []


def _convert_text(options: dict[str, Any], error: ErrorDetails) -> bool:
    """Convert a text that pydantic could not: a list with commas, or a duration."""
    if len(error["loc"]) != 1:
        return False
    name = str(error["loc"][0])
    text = options.get(name)
    if not isinstance(text, str):
        return False
    if error["type"] == "list_type":
        options[name] = [part.strip() for part in text.split(",")]
        return True
    if error["type"] == "float_parsing" and name.endswith("_seconds"):
        try:
            options[name] = seconds_of(text)
        except ValueError:
            return False
        return True
    return False


def _report(translation: Translation, model: type[Options], error: ErrorDetails) -> None:
    """Report an error of pydantic about an option as a problem of the setting that it comes from."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    setting = translation.origin(path)
    if any(found.setting == setting for found in translation.problems):
        return  # A setting that could not be read seems missing as well; one problem is enough.
    if error["type"] == "missing" and len(path) == 1:
        description = model.model_fields[str(path[0])].description
        hint = f"add `{setting}: …`" + (f", {description}" if description else "")
        translation.problem(setting, "this setting is required", hint)
    else:
        suggestion = error.get("ctx", {}).get("suggestion")
        translation.problem(setting, f"{error['msg']}{translation.quote(setting)}", suggestion)


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


_TRANSLATORS: Final[dict[tuple[Kind, str], Callable[[Translation], None]]] = {
    ("source", "generator"): _translate_generator,
    ("source", "file"): _translate_file_source,
    ("destination", "file"): _translate_file_destination,
    ("destination", "log"): _translate_log,
}
"""The plugins whose settings differ from our options."""

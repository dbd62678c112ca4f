"""Our own options as settings: by their names, as text, with dots for options inside others."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conduit_py.config.settings.translation import Translation, seconds_of
from conduit_py.sdk.options import Options, did_you_mean


def adopt(translation: Translation, model: type[Options]) -> None:
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

"""Our own options in a file of Conduit's form: by their names, as text, with dots for what is inside of others."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conduit_py.config.settings.translation import Translation, seconds_of
from conduit_py.sdk.options import Options, did_you_mean


def adopt(translation: Translation, model: type[Options]) -> None:
    """Take the settings that are options of the plugin, then check all options. Others do not exist.

    Text becomes what the option is: numbers, true and false, a list from text with commas, seconds
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
        _blame(translation, model, error)


def _unknown(translation: Translation, name: str, known: list[str]) -> None:
    translation.take(name)
    names = sorted(set(known))
    # The SDK's own are many and seldom what was meant.
    shown = [each for each in names if not each.startswith("sdk.")]
    listed = f"settings are {', '.join(shown)}" if shown else "it takes none"
    translation.problem(name, "there is no such setting", did_you_mean(name, names) or listed)


def _errors(model: type[Options], options: dict[str, Any]) -> list[ErrorDetails]:
    errors = _validated(model, options)
    reread = [_reread(options, error) for error in errors]
    return _validated(model, options) if any(reread) else errors


def _validated(model: type[Options], options: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        model(**options)
    except ValidationError as invalid:
        return invalid.errors(include_url=False)
    return []


def _reread(options: dict[str, Any], error: ErrorDetails) -> bool:
    """Read a text in another way, when the option is not text and the plugin could not read it itself."""
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


def _blame(translation: Translation, model: type[Options], error: ErrorDetails) -> None:
    """Say in terms of settings what pydantic says of options."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    setting = translation.origin(path)
    if any(remark.setting == setting for remark in translation.problems):
        return  # What could not be read is now missing as well, which nobody needs to be told.
    if error["type"] == "missing" and len(path) == 1:
        description = model.model_fields[str(path[0])].description
        hint = f"add `{setting}: …`" + (f", {description}" if description else "")
        translation.problem(setting, "this setting is required", hint)
    else:
        translation.problem(setting, f"{error['msg']}{translation.quoted(setting)}")

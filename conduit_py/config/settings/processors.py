"""Settings of Conduit's processors, which are ours by the same names except for what follows."""

from conduit_py.config.settings.translation import Translation
from conduit_py.sdk.template.errors import TemplateInvalid
from conduit_py.sdk.template.template import Template


def field_set(translation: Translation) -> None:
    """`value` is a Go template, with functions; without braces it is a constant."""
    _template(translation, "value")


def error(translation: Translation) -> None:
    """`message` is a Go template, with functions."""
    _template(translation, "message")


def _template(translation: Translation, name: str) -> None:
    value = translation.take(name)
    if value is None:
        return
    if "{{" not in value:
        translation.set(name, value, name)
        return
    try:
        translation.set(name, Template(value), name)
    except TemplateInvalid as invalid:
        translation.problem(name, invalid.describe(value), invalid.suggestion)

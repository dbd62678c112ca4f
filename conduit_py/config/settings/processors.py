"""Settings of Conduit's processors, which are ours by the same names except for what follows."""

from conduit_py.config.settings.translation import Translation
from conduit_py.config.template.mistake import TemplateInvalid
from conduit_py.config.template.template import Template


def field_set(translation: Translation) -> None:
    """`value` is a Go template, with functions; without braces it is a constant."""
    value = translation.take("value")
    if value is None:
        return
    if "{{" not in value:
        translation.set("value", value, "value")
        return
    try:
        translation.set("value", Template(value), "value")
    except TemplateInvalid as invalid:
        translation.problem("value", invalid.described(value), invalid.suggestion)

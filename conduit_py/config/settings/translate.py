"""translate: the settings of a plugin, whichever it is, as its options."""

from collections.abc import Callable, Mapping
from typing import Final

from conduit_py.config.settings import file, generator, log, processors
from conduit_py.config.settings.middleware import middleware
from conduit_py.config.settings.native_options import adopt
from conduit_py.config.settings.translation import Setting, Translation
from conduit_py.sdk.options import Options
from conduit_py.sdk.registry import Kind

_FAMILIES: Final[dict[tuple[Kind, str], Callable[[Translation], None]]] = {
    ("source", "generator"): generator.source,
    ("source", "file"): file.source,
    ("destination", "file"): file.destination,
    ("destination", "log"): log.destination,
    ("processor", "field.set"): processors.field_set,
    ("processor", "error"): processors.error,
}
"""The plugins whose settings differ from our options."""


def translate(kind: Kind, plugin: str, settings: Mapping[str, Setting], model: type[Options]) -> Translation:
    """Options that the plugin takes, or remarks on what is wrong with the settings, all of them."""
    translation = Translation(settings)
    middleware(kind, translation)
    family = _FAMILIES.get((kind, plugin))
    if family is not None:
        family(translation)
    if translation.line is not None and (kind, plugin) != ("destination", "file"):
        what = "a template is for the file destination only, this one writes whole records"
        translation.problem("sdk.record.format", what, "leave it out")
    adopt(translation, model)
    return translation

"""Redaction: secrets taken out of text by their value, whoever put them there."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.lifecycle.fleet import Fleet
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.plugin import Plugin

MASK = "**********"
LENGTH_MIN = 4
"""Shorter secrets are let through: masking every "a" in a text hides the text and not the secret."""


class Redaction:
    """Knows the secrets in the options of a fleet's plugins, also after a pipeline was replaced."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._secrets: dict[str, list[str]] = {}
        self._known: dict[str, Pipeline] = {}

    def __call__(self, text: str) -> str:
        """The text without any secret of any pipeline, longest first, so that no part of one is left."""
        for secret in self._all():
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def _all(self) -> list[str]:
        for member in self._fleet:
            id, pipeline = member.pipeline.id, member.pipeline
            if self._known.get(id) is not pipeline:
                self._known[id] = pipeline
                self._secrets[id] = sorted({*self._secrets.get(id, []), *secrets_of(pipeline)})
        return sorted({each for secrets in self._secrets.values() for each in secrets}, key=len, reverse=True)


def secrets_of(pipeline: Pipeline) -> Iterator[str]:
    """Every secret that stands in the options of a pipeline's plugins."""
    processors = [
        *pipeline.processors,
        *(each for end in (*pipeline.sources, *pipeline.destinations) for each in end.processors),
    ]
    connectors = [end.connector for end in (*pipeline.sources, *pipeline.destinations)]
    for plugin in (*connectors, *(each.processor for each in processors), pipeline.dead_letters.handler):
        if isinstance(plugin, Plugin) and not plugin.problems:
            yield from (secret for secret in _secrets_in(plugin.options) if len(secret) >= LENGTH_MIN)


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode(errors="replace")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets_in(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _secrets_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _secrets_in(each)

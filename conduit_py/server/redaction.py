"""Redaction: the secrets of a fleet, so that no text that leaves the server quotes one."""

import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.config.secrets import SECRETS
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.plugin import Plugin
from conduit_py.wire_error import safe_text


class Redaction:
    """Tells the secrets of this process of those in the options of a fleet's plugins, and takes them out of texts."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: WeakSet[Pipeline] = WeakSet()

    def __call__(self, text: str) -> str:
        """The text with every secret of this process masked, and fit to be sent."""
        self.learn()
        return safe_text(SECRETS.redact(text))

    def learn(self) -> None:
        """Look for secrets in pipelines that came, or were replaced, since the last time."""
        for member in self._fleet:
            # Looking through all options takes a while, and this runs for every text that leaves the server.
            if member.pipeline not in self._known:
                self._known.add(member.pipeline)
                for secret in secrets_of(member.pipeline):
                    SECRETS.add(secret)


def secrets_of(pipeline: Pipeline) -> Iterator[str]:
    """Every secret that stands in the options of a pipeline's plugins."""
    ends = pipeline.ends
    processors = [*pipeline.processors, *(each for end in ends for each in end.processors)]
    plugins = [*(end.connector for end in ends), *(each.processor for each in processors)]
    for plugin in (*plugins, pipeline.dead_letters.policy.connector):
        if isinstance(plugin, Plugin) and not plugin.problems:
            yield from _secrets_in(plugin.options)
    if pipeline.spark is not None:
        yield from (value for name, value in pipeline.spark.conf.items() if _SECRET.search(name))


_SECRET = re.compile("secret|password|token|access.?key", re.IGNORECASE)
"""How settings of Spark's are called that hold one."""


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

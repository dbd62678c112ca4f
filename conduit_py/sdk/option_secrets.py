"""Finds the secrets in the options of plugins, so that they are masked from the moment on at which a plugin is made."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from conduit_py.redaction import SECRETS
from conduit_py.secret_forms import is_secret_name, secrets_in_text


def learn_secrets(options: BaseModel) -> None:
    """Add every secret in the options to those of this process."""
    SECRETS.add(*_secrets_in(options))


def learn_from_invalid(model: type[BaseModel], values: Mapping[str, Any]) -> None:
    """Do the same for values that are not valid options: the problems with them quote what was given."""
    for name, value in values.items():
        field = model.model_fields.get(name)
        # By its name, not its parts: the type may be nested in unions, lists and other types in many ways.
        secret = field is not None and "Secret" in repr(field.annotation)
        SECRETS.add(*(_texts_in(value) if secret else _secrets_in(value)))


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from secrets_in_text(value)
    elif isinstance(value, Secret | SecretStr | SecretBytes):
        yield from _texts_in(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets_in(getattr(value, name))
    elif isinstance(value, dict):
        for name, each in value.items():
            secret = isinstance(name, str) and isinstance(each, str) and is_secret_name(name)
            yield from (each,) if secret else _secrets_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _secrets_in(each)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, Secret | SecretStr | SecretBytes):
        yield from _texts_in(value.get_secret_value())
    elif isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, dict | list | tuple | set | frozenset):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)

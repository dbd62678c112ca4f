"""guarded_validator: a validator of JSON Schema that no schema and no value can hold up, or have fetch anything.

Patterns are those of RE2, which take linear time. References lead nowhere but into the schema, and are followed a
limited number of times for each value.
"""

import threading
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final
from uuid import UUID

import msgspec

from conduit_processors.registry.client import SchemaUnusable
from conduit_py.sdk import RecordRefused

REFERENCES_PER_VALUE_MAX: Final = 10_000
ERRORS_MAX: Final = 20
_PATTERN_LENGTH_MAX: Final = 10_000
_COMPARED_MAX: Final = 100
_TEXT_IN_JSON: Final = (str, bytes, date, time, timedelta, UUID, Decimal)
"""What is text in the JSON of a record. A datetime is a date to Python."""


class GuardedValidator:
    """Checks values against one schema. With `strict`, the types are those of Python and not those of JSON.

    A schema that is `sound` already is not checked again, which takes long.
    """

    def __init__(
        self, schema: Any, *, strict: bool = False, sound: bool = False, resources: Mapping[str, Any] | None = None
    ) -> None:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        try:
            base = validator_for(schema, default=Draft202012Validator)
            if not strict and not sound:
                base.check_schema(schema)
            _check_patterns(schema)
            found = [(uri, DRAFT202012.create_resource(each)) for uri, each in (resources or {}).items()]
            # Without a function that retrieves: a reference to elsewhere is an error and no request.
            registry: Any = Registry().with_resources(found)
            self._validator: Any = _guarded(base, strict)(schema, registry=registry)
        except SchemaError as error:
            raise SchemaUnusable(f"it is no JSON Schema: {error.message[:300]}") from error
        except SchemaUnusable:
            raise
        except Exception as error:  # the library raises many kinds for what is no schema
            raise SchemaUnusable(f"it is no JSON Schema: {type(error).__name__}: {str(error)[:300]}") from error

    def errors(self, value: Any) -> list[Any]:
        """Return what is wrong with the value, at most `ERRORS_MAX`. Raises RecordRefused if that cannot be found."""
        from referencing.exceptions import Unresolvable

        _followed.count = 0
        found = []
        try:
            for error in self._validator.iter_errors(value):
                found.append(error)
                if len(found) == ERRORS_MAX:
                    break
        except Unresolvable as error:
            raise RecordRefused(f"cannot be checked: the schema refers to {str(error)[:200]}") from error
        except RecursionError:
            raise RecordRefused("cannot be checked: the schema or the value is nested too deeply") from None
        except _TooManyReferences:
            limit = REFERENCES_PER_VALUE_MAX
            raise RecordRefused(f"cannot be checked: it takes more than {limit} references of the schema") from None
        return found


class _TooManyReferences(Exception):
    """The schema refers to itself again and again for one value."""


# Not of a validator: the library makes a new one for each part of a value.
_followed = threading.local()


@cache
def _guarded(base: Any, strict: bool) -> Any:
    from jsonschema.validators import extend

    def follow(name: str) -> Any:
        original = base.VALIDATORS.get(name)

        def counted(validator: Any, target: Any, value: Any, schema: Any) -> Iterator[Any]:
            _followed.count += 1
            if _followed.count > REFERENCES_PER_VALUE_MAX:
                raise _TooManyReferences
            yield from original(validator, target, value, schema) or ()

        return counted

    checks: dict[str, Any] = {"pattern": _pattern, "patternProperties": _pattern_properties}
    checks |= {"additionalProperties": _additional_properties, "uniqueItems": _unique(base)}
    checks |= {"minLength": _length(base, "minLength"), "maxLength": _length(base, "maxLength")}
    checks |= {name: follow(name) for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in base.VALIDATORS}
    if not strict:
        checker = base.TYPE_CHECKER.redefine("string", lambda _, value: isinstance(value, _TEXT_IN_JSON))
        return extend(base, checks, type_checker=checker)
    # Of one schema only, and strict: what else is in the record must not pass unseen.
    return extend(base, checks, type_checker=base.TYPE_CHECKER.redefine_many(_strict_types()))


def _strict_types() -> dict[str, Any]:
    def exactly(*kinds: type) -> Any:
        return lambda _, value: type(value) in kinds

    return {
        "boolean": exactly(bool),
        "integer": exactly(int),
        "number": exactly(float, int),
        "decimal": exactly(Decimal, int),
        "string": exactly(str),
        "bytes": exactly(bytes),
        "date": exactly(date),
        "time": exactly(time),
        "timestamp": lambda _, value: isinstance(value, datetime) and value.utcoffset() is None,
        "timestamptz": lambda _, value: isinstance(value, datetime) and value.utcoffset() is not None,
        "interval": exactly(timedelta),
        "uuid": exactly(UUID),
        "array": exactly(list, tuple),
    }


def _search(pattern: str, text: str) -> bool:
    import re2

    return re2.search(pattern, text) is not None


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not _search(pattern, value):
        yield ValidationError(f"does not match {pattern[:100]!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for key, item in value.items():
                if _search(pattern, key):
                    yield from validator.descend(item, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, more: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in value:
        if key not in known and not any(_search(pattern, key) for pattern in patterns):
            if more is False:
                yield ValidationError(f"has the field {key[:100]!r}, which is not in the schema", context=())
            elif isinstance(more, dict):
                yield from validator.descend(value[key], more, path=key)


def _unique(base: Any) -> Any:
    original = base.VALIDATORS.get("uniqueItems")

    def unique(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        # The library compares all with all if they cannot be sorted.
        if isinstance(value, list) and len(value) > _COMPARED_MAX:
            texts = {msgspec.json.encode(item, order="sorted") for item in value}
            if wanted and len(texts) < len(value):
                yield ValidationError("has items that are equal")
        else:
            yield from original(validator, wanted, value, schema) or ()

    return unique


def _length(base: Any, name: str) -> Any:
    original = base.VALIDATORS.get(name)

    def length(validator: Any, limit: Any, value: Any, schema: Any) -> Iterator[Any]:
        # A date is text in JSON, and has no length here.
        if isinstance(value, str):
            yield from original(validator, limit, value, schema) or ()

    return length


def _check_patterns(schema: Any) -> None:
    """Raise SchemaUnusable for a pattern that RE2 does not have, or that the library would match by itself."""
    import re2

    options = re2.Options()
    options.log_errors = False
    level = [schema]
    while level:
        found = level.pop()
        if isinstance(found, list):
            level += found
        elif isinstance(found, dict):
            patterns = found.get("patternProperties")
            texts = [found.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]
            if patterns and "unevaluatedProperties" in found:
                raise SchemaUnusable("it has patternProperties beside unevaluatedProperties, which is not supported")
            for text in texts:
                if isinstance(text, str):
                    if len(text) > _PATTERN_LENGTH_MAX:
                        raise SchemaUnusable("it has a pattern that is too long")
                    try:
                        re2.compile(text, options)
                    except re2.error as error:
                        raise SchemaUnusable(f"the pattern {text[:100]!r} is not one of RE2: {error}") from error
            level += found.values()

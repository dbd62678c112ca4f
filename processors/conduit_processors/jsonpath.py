"""`jsonpath.extract` takes values out of a record by a path as RFC 9535 has it."""

import copy
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Final, Literal, Required, TypeAlias, TypedDict, Unpack

import re2
from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathQuery
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction
from pydantic import Field, field_validator

from conduit_processors.field_processor import Inner
from conduit_py.sdk import JSON_DEPTH_MAX, Options, Processor, Record, RecordRefused
from conduit_py.sdk.template import FieldPath, kind_of, option_error

_VALUES_MAX: Final = 10_000

Missing: TypeAlias = Literal["refuse", "null", "keep", "drop"]


class ExtractOptions(Options):
    """Options of jsonpath.extract."""

    path: str = Field(min_length=1, description="the path, such as $.items[?@.price > 10].sku")
    into: Inner = Field(description="the field that gets the value")
    field: FieldPath = Field(
        default_factory=lambda: FieldPath.of(".Payload.After"), description="the field that the path begins at"
    )
    many: bool = Field(default=False, description="a list of all values, in place of the only one")
    missing: Missing = Field(
        default="refuse",
        description="a record without such a value: refuse it, set null, keep it as it is, or drop it; with `many` "
        "the list is empty, and this does not matter",
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        try:
            _ENVIRONMENT.compile(path)
        except JSONPathError as error:
            raise option_error(f"must be a JSONPath ({str(error).splitlines()[0][:200]})", "begin with $") from None
        return path


class ExtractArguments(TypedDict, total=False):
    """ExtractOptions as a caller writes them, for editors and type checkers."""

    path: Required[str]
    into: Required[str | FieldPath]
    field: str | FieldPath
    many: bool
    missing: Missing


class Extract(Processor[ExtractOptions]):
    """Puts the value at a path into a field, or with `many` the list of all values.

    A path that finds several values without `many` refuses the record, and so do more than 10 000 values. Patterns of
    `match` and `search` are those of RE2, which takes linear time.
    """

    blocking = False
    _query: JSONPathQuery

    def __init__(self, **options: Unpack[ExtractArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._query = _ENVIRONMENT.compile(self.options.path)

    def process(self, record: Record) -> Record | None:
        options = self.options
        value = options.field.get(record)
        if not isinstance(value, dict | list):
            raise RecordRefused(f"{options.field}: has no paths: it is {kind_of(value)}")
        try:
            found = [node.value for node in islice(self._query.finditer(value), _VALUES_MAX + 1)]
        except (JSONPathError, RecursionError) as error:
            raise RecordRefused(f"{options.path}: {str(error)[:200]}") from error
        if len(found) > _VALUES_MAX:
            raise RecordRefused(f"{options.path}: finds more than {_VALUES_MAX} values")
        # Copies: a later processor that changes one place must not change the other.
        if options.many:
            options.into.set(record, copy.deepcopy(found))
        elif len(found) > 1:
            raise RecordRefused(f"{options.path}: finds {len(found)} values, and `many` is not set")
        elif found:
            options.into.set(record, copy.deepcopy(found[0]))
        elif options.missing == "refuse":
            raise RecordRefused(f"{options.path}: finds nothing")
        elif options.missing == "null":
            options.into.set(record, None)
        return None if not found and not options.many and options.missing == "drop" else record


class _Pattern(FilterFunction):
    """`match` and `search` by RE2. Those of the library take exponential time on a text that is made for it.

    A record may even bring the pattern. One that RE2 does not take is not matched, as the RFC says.
    """

    arg_types: ClassVar = [ExpressionType.VALUE, ExpressionType.VALUE]
    return_type = ExpressionType.LOGICAL

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        try:
            compiled = _compile(pattern)
            return (compiled.fullmatch if self._whole else compiled.search)(text) is not None
        except (re2.error, UnicodeEncodeError):
            return False


# Bounded: records may bring patterns.
@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _make_environment() -> JSONPathEnvironment:
    environment = JSONPathEnvironment()
    environment.max_recursion_depth = JSON_DEPTH_MAX
    environment.function_extensions |= {"match": _Pattern(whole=True), "search": _Pattern(whole=False)}
    return environment


_ENVIRONMENT: Final = _make_environment()

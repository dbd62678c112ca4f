"""Plugin: what sources, destinations and processors have in common, and their options.

Options are checked when a plugin is made. Every problem has a path, the line of the user's call, and a suggestion.
"""

import difflib
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from conduit_py.errors import PipelineInvalid, Problem
from conduit_py.record import DriftCount
from conduit_py.redaction import redact
from conduit_py.sdk.secrets import learn_from_invalid, learn_secrets


class Options(BaseModel):
    """Base of every plugin's options. Unknown names are problems, and values never change."""

    # Invariant 12: an unknown option is a problem. Ignored, a misspelt one would run with its default.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def model_post_init(self, context: Any, /) -> None:
        # Here, where all options pass: a connector may quote its password in the first error of its first call.
        learn_secrets(self)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        # Executors of Spark get options pickled, and pydantic does not check those again.
        super().__setstate__(state)
        learn_secrets(self)


# Covariant, so that a list of connectors with different options is a list of SourceConnector[Options].
OptionsT = TypeVar("OptionsT", bound=Options, covariant=True)


class Place(NamedTuple):
    """The file and line of the user's call that made an object."""

    file: str
    line: int


class Plugin(Generic[OptionsT]):
    """A connector or processor, made with its options.

    The constructor checks the options and collects every problem in `problems`, so that a pipeline reports all of
    them at once. Each run uses its own `fresh()` instance, so attributes set in `open` do not reach the next run.
    Methods may be sync or async: the runtime awaits async ones and runs sync ones in a thread of the node, so
    they may block.
    """

    options_model: ClassVar[type[Options]] = Options

    blocking: ClassVar[bool | None] = True
    """Where sync methods run. True: in the node's thread, so they may block. False: in the event loop.
    None: those on the data path run in the event loop until a call is slow, then in the thread, so they
    must not depend on the thread."""

    requires: ClassVar[Mapping[str, str]] = {}
    """The modules that it imports only when it runs, each with what to install if it is missing."""

    drift_count: DriftCount | None = None
    """Set by `open` of a processor or a destination that looks for what does not fit its schema."""

    def __init__(self, **options: Any) -> None:
        self._declare(options, place_of_call())

    def _declare(self, options: dict[str, Any], place: Place | None) -> None:
        self.place = place
        self._written = options
        checked, problems = check_options(self.options_model, options, place)
        self._options = checked
        missing = {module: name for module, name in self.requires.items() if find_spec(module) is None}
        self.problems: list[Problem] = problems + [
            Problem("", f"needs {module}, which is not installed", f"pip install '{name}'", *(place or (None, None)))
            for module, name in missing.items()
        ]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # From the base, as in SourceConnector[MyOptions], so that an author names the model once.
        for argument in (each for base in cls.__dict__.get("__orig_bases__", ()) for each in get_args(base)):
            if isinstance(argument, type) and issubclass(argument, Options):
                cls.options_model = argument

    @property
    def options(self) -> OptionsT:
        """The checked options. Raises PipelineInvalid if they have problems."""
        if self._options is None:
            raise PipelineInvalid(type(self).__qualname__, self.problems)
        return self._options  # type: ignore[return-value]

    def fresh(self) -> Self:
        """Return a new plugin with the same options and no other state."""
        # Not by calling the class: a subclass may have a constructor with arguments of its own.
        new = type(self).__new__(type(self))
        new.place, new.problems = self.place, self.problems
        new._written, new._options = self._written, self._options
        return new

    def with_options(self, options: Options) -> Self:
        """Return a fresh plugin with other options, which are checked already."""
        assert isinstance(options, self.options_model), f"{type(options).__name__} for {type(self).__name__}"
        new = self.fresh()
        new._written, new._options, new.problems = {}, options, []  # executors get none that these leave out
        return new


class Dataset(NamedTuple):
    """What a connector reads or writes, as OpenLineage names it. It never has a user, a password or a query."""

    namespace: str
    name: str

    @classmethod
    def at(cls, place: str) -> "Dataset":
        """Name a folder or an object: `s3://bucket/key`, or a path of this machine."""
        scheme, divider, rest = place.partition("://")
        if not divider or scheme == "file":
            return cls("file", str(Path(rest if divider else place).absolute()))
        host, _, path = rest.partition("?")[0].partition("/")
        return cls(f"{scheme}://{host.rpartition('@')[2]}", path.strip("/") or "/")

    @classmethod
    def tables(cls, url: str, names: Iterable[str], *, port: int, schema: str = "") -> "list[Dataset]":
        """Name tables of the database at this URL. Without names, that is the database."""
        above = [urlsplit(url).path.strip("/")] + ([schema] if schema else [])
        # A name with a dot has its schema, or in MariaDB its database, already.
        full = [".".join([*above[: 1 if schema else 0], each] if "." in each else [*above, each]) for each in names]
        return [cls.at_server(url, each, port=port) for each in full or above[:1]]

    @classmethod
    def at_server(cls, url: str, name: str, *, port: int) -> "Dataset":
        """Name what the server at this URL has, such as a queue. Of several servers the first one counts."""
        parts = urlsplit(url.partition(",")[0])
        scheme = parts.scheme.partition("+")[0].replace("postgresql", "postgres")
        return cls(f"{scheme}://{parts.hostname or 'localhost'}:{parts.port or port}", name)


class Connector(Plugin[OptionsT]):
    """A source or destination. Its `on_…` methods are called when its definition changes, outside of runs."""

    in_process: ClassVar[bool] = False
    """True if it works with objects of the process that made it: then it cannot run in another one."""

    @property
    def declared(self) -> "Connector[Options]":
        """The connector that the user declared: this one, unless the runtime replaced it."""
        return self

    def data_file(self) -> Path | None:
        """Return the file that it reads or appends to, if any. No destination may write what a source reads."""
        return None

    def datasets(self) -> Sequence[Dataset]:
        """Return what it reads or writes, for lineage; by default its file. No secret may be in a name."""
        return [] if (path := self.data_file()) is None else [Dataset.at(str(path))]

    def probe(self) -> Awaitable[str | None] | str | None:
        """Reach the system for `check --connect`, change nothing, and return what is there. It is never opened."""

    def on_created(self) -> Awaitable[None] | None:
        """Called before the first `open` with this state. Called again if a crash comes before that `open`."""

    def on_updated(self, before: dict[str, Any]) -> Awaitable[None] | None:
        """Called before `open` if the options changed; `before` has those of the last run as plain values."""

    def on_deleted(self) -> Awaitable[None] | None:
        """Called when the connector was removed from the pipeline, on an instance that is never opened."""

    def teardown(self) -> Awaitable[None] | None:
        """Release everything. The last call, made once after `open`, even if `open` failed."""


def check_options(
    model: type[Options], values: Mapping[str, Any], place: Place | None
) -> tuple[Options | None, list[Problem]]:
    """Return the checked options, or every problem with them, each with its path, place and a suggestion."""
    try:
        return model(**values), []
    except ValidationError as invalid:
        learn_from_invalid(model, values)
        return None, [_problem(model, error, place) for error in invalid.errors(include_url=False)]


def _problem(model: type[BaseModel], error: ErrorDetails, place: Place | None) -> Problem:
    # pydantic adds a part "[key]" for an error in a key of a mapping, which is no part of what the user wrote.
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    message, suggestion = error["msg"], error.get("ctx", {}).get("suggestion")
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        known = sorted(model.model_fields)
        message = "there is no such option"
        suggestion = did_you_mean(name, known) or (f"options are {', '.join(known)}" if known else "it has no options")
    elif error["type"] == "missing":
        message = "this option is required"
        description = model.model_fields[name].description if name in model.model_fields else None
        suggestion = f"add {name}=…" + (f": {description}" if description else "")
    elif "input" in error and isinstance(error["input"], str | int | float | bool | None):
        message = redact(f"{message}, not {error['input']!r}")
        if error["type"] == "literal_error":
            suggestion = did_you_mean(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return Problem(path, message, suggestion, *(place or (None, None)))


def model_problems(invalid: ValidationError, place: Place | None) -> list[Problem]:
    """Return the problems of a value such as `Retry(…)`, which raises when it is made."""
    models, found = [BaseModel], BaseModel
    while models and found.__name__ != invalid.title:
        found = models.pop()
        models += found.__subclasses__()
    return [at(_problem(found, error, place), invalid.title) for error in invalid.errors(include_url=False)]


DeclarationT = TypeVar("DeclarationT", bound=Callable[..., Any])


def collect_keyword_problems(declaration: DeclarationT) -> DeclarationT:
    """Make an unknown keyword of a declaration one of its problems. A TypeError would hide all the others.

    A value whose name is almost right is used under the right one, so that what is wrong inside it is found too. What
    is missing is None, which is a problem of its own.
    """
    parameters = signature(declaration).parameters

    @wraps(declaration)
    def declare(*args: Any, **given: Any) -> Any:
        free = [name for name in list(parameters)[len(args) :] if name not in given]
        problems: list[Problem] = []
        for name in [each for each in given if each not in parameters]:
            value = given.pop(name)
            names = [each for each in list(parameters)[1:] if not each.startswith("_")]
            hint = did_you_mean(name, names) or f"options are {', '.join(names)}"
            problems.append(Problem(name, "there is no such option", hint, *(place_of_call() or (None, None))))
            for meant in difflib.get_close_matches(name, free, n=1, cutoff=0.8):
                given[meant] = value
                free.remove(meant)
        given |= {name: None for name in free if parameters[name].default is Parameter.empty}
        made = declaration(*args, **given)
        if problems:
            # A constructor returns nothing, a class method returns what it made.
            (args[0] if made is None else made).problems.extend(problems)
        return made

    return declare  # type: ignore[return-value]


def at(problem: Problem, prefix: str) -> Problem:
    """Return the problem with `prefix` before its path."""
    path = f"{prefix}.{problem.path}" if problem.path else prefix
    return Problem(path, problem.message, problem.suggestion, problem.file, problem.line)


def did_you_mean(word: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def place_of_call() -> Place | None:
    """Return the line of the user's file that makes the object: the nearest caller outside of our modules."""
    # Frames, not inspect.stack(): that reads source files, once for every object of a definition.
    frame = sys._getframe(1)
    while frame is not None:
        ours = frame.f_globals.get("__name__") in _DECLARING
        if not ours and frame.f_code.co_name not in _CONSTRUCTION:
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


_CONSTRUCTION = {"__init__", "__call__"}
_DECLARING = {
    "conduit_py.dead_letter_policy",
    "conduit_py.resolve",
    "conduit_py.pipeline",
    "conduit_py.sdk.plugin",
    "conduit_py.sdk.processor",
}
"""The modules that make objects for the user: a plugin from its name, a processor from a function."""


class TextOption:
    """A value that `of` parses from text and `str` turns back into the same text.

    Options may have such a type. It is text in JSON and in its schema.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the value for a text, or for such a value. Raises ValueError for anything else."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))


def option_error(message: str, suggestion: str | None = None) -> ValueError:
    """Return an error to raise while options are checked. Its message names what is expected; the value is added."""
    # Passed as a value, because pydantic's message is a format string and ours may contain braces.
    return PydanticCustomError("option", "{message}", {"message": message, "suggestion": suggestion})

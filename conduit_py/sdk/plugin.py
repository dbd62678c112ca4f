"""Plugin: what sources, destinations and processors have in common."""

from collections.abc import Awaitable
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin

from conduit_py.errors import PipelineInvalid, Problem
from conduit_py.sdk.options import Options, Place, check_options, place_of_call

OptionsT = TypeVar("OptionsT", bound=Options)


class Plugin(Generic[OptionsT]):
    """A connector or processor as a user writes it down: options now, work later.

    Making one checks its options and keeps every mistake in `problems`, so that a pipeline can report
    all of them at once. The runtime works with a `fresh()` one per run, so instance attributes set in
    `open` never leak from one run into the next. Methods may be sync or async: the runtime awaits the
    async ones and runs the sync ones in a thread that belongs to the node, so they may block.
    """

    options_model: ClassVar[type[Options]] = Options

    blocking: ClassVar[bool | None] = True
    """Whether sync methods may block. True: they run in the node's thread. False: in the event loop.
    None: those on the data path run in the event loop until a call proves slow, so they must not
    mind in which thread they are."""

    def __init__(self, **options: Any) -> None:
        self._declare(options, place_of_call())

    def _declare(self, options: dict[str, Any], place: Place | None) -> None:
        self.place = place
        self._written = options
        checked, problems = check_options(self.options_model, options, place)
        self._options = checked
        self.problems: list[Problem] = problems

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if get_origin(base) is not None and isinstance(argument, type) and issubclass(argument, Options):
                    cls.options_model = argument

    @property
    def options(self) -> OptionsT:
        """The checked options; a plugin made with mistakes raises them here."""
        if self._options is None:
            raise PipelineInvalid(type(self).__qualname__, self.problems)
        return self._options  # type: ignore[return-value]

    def fresh(self) -> Self:
        """A new plugin with the same options and nothing else in common."""
        new = type(self).__new__(type(self))
        new.place, new.problems = self.place, self.problems
        new._written, new._options = self._written, self._options
        return new


class Connector(Plugin[OptionsT]):
    """A source or destination: a plugin with a life outside of runs."""

    @property
    def declared(self) -> "Connector[Any]":
        """The connector that the user wrote down: itself, unless the runtime put this one in its place."""
        return self

    def on_created(self) -> Awaitable[None] | None:
        """Called before the first `open` ever with this state directory; again if a crash came in between."""

    def on_updated(self, before: dict[str, Any]) -> Awaitable[None] | None:
        """Called before `open` when the options differ from those of the last run, given as plain values."""

    def on_deleted(self) -> Awaitable[None] | None:
        """Called, and nothing else, when the connector has been taken out of the pipeline."""

    def teardown(self) -> Awaitable[None] | None:
        """Release everything. Called once after `open`, even when that failed; nothing is called after it."""


def connector_label(connector: object) -> str:
    """The short name of a connector: the system for those that come along, the class for others."""
    package, _, module = type(connector).__module__.partition(".")
    return module.partition(".")[0] if package == "conduit_connectors" else type(connector).__name__

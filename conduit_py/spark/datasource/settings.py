"""FormatSettings: the options of the data source, the connector that they describe, and how errors reach the user.

Spark shows errors as a traceback: what to do about them is added as a note.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import Field, field_validator

from conduit_py import sdk
from conduit_py.errors import ConduitError, EnvironmentUnfit, FatalError, PipelineInvalid, Problem
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Options, check_options
from conduit_py.sdk.source import SharedSource

WHERE = 'format("conduit")'

FormatSettingsT = TypeVar("FormatSettingsT", bound="FormatSettings")


class FormatSettings(Options):
    """Options of the data source itself. All others are the connector's."""

    connector: str = Field(description='the name of a connector, as in YAML: "file", "postgres", …')


class ReadSettings(FormatSettings):
    """How a source is read. The limits are those of one micro-batch of a stream."""

    rows_per_batch: int | None = Field(
        default=None, ge=1, description="at most so many rows in a micro-batch; has the driver read the source"
    )
    bytes_per_batch: int = Field(
        default=64 * 1024 * 1024, ge=1, description="about so many bytes of input in a micro-batch"
    )


class WriteSettings(FormatSettings):
    """How a destination is written."""

    delivery: Literal["exactly_once", "at_least_once"] | None = Field(
        default=None,
        description="exactly_once: the driver publishes what tasks have prepared, all of it or nothing; "
        "at_least_once: each task writes by itself; without it the first, where the destination can",
    )
    key_columns: list[str] = Field(
        default=[], description="for rows that are no records: the columns that are the key, separated by commas"
    )
    name: str = Field(default="spark", min_length=1, description="two writes at once to one place need two names")
    stage: Path | None = Field(
        default=None, description="a folder that the driver and all executors share, for what waits to be published"
    )
    state: str | None = Field(
        default=None,
        description="where a stream remembers which batches are published, a folder or a postgresql:// address; "
        "without it beside Spark's checkpoint",
    )
    # In lower case, as Spark passes on the names of all options.
    checkpointlocation: str | None = Field(default=None, description="Spark's own option, which is passed on")

    @field_validator("key_columns", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def read_settings(options: Mapping[str, str]) -> tuple[ReadSettings, sdk.SourceConnector[Any]]:
    """The source that the options describe. Raises PipelineInvalid with every problem of them."""
    settings, plugin = _make(ReadSettings, "source", options)
    assert isinstance(plugin, sdk.SourceConnector)
    if isinstance(plugin, SharedSource):
        what = (
            f"{settings.connector!r} shares its work with other processes by leases, which tasks of Spark do not keep"
        )
        raise invalid(Problem("connector", what, "run it as a pipeline, into a connector that Spark reads"))
    return settings, plugin


def write_settings(options: Mapping[str, str]) -> tuple[WriteSettings, sdk.DestinationConnector[Any]]:
    """The destination that the options describe. Raises PipelineInvalid with every problem of them."""
    settings, plugin = _make(WriteSettings, "destination", options)
    assert isinstance(plugin, sdk.DestinationConnector)
    if settings.delivery == "exactly_once" and not isinstance(plugin, sdk.StagedDestination):
        what = (
            f"{settings.connector!r} neither stages nor keeps a checkpoint with its data, so it cannot be exactly_once"
        )
        raise invalid(Problem("delivery", what, 'take "at_least_once"'))
    return settings, plugin


def invalid(*problems: Problem) -> PipelineInvalid:
    return PipelineInvalid(WHERE, problems)


def _make(
    model: type[FormatSettingsT], kind: registry.Kind, options: Mapping[str, str]
) -> tuple[FormatSettingsT, sdk.SourceConnector[Any] | sdk.DestinationConnector[Any]]:
    own = {name: text for name, text in options.items() if name in model.model_fields}
    settings, problems = check_options(model, own, None)
    name = own.get("connector", "")
    plugin = _plugin(kind, name, problems) if name else None
    if plugin is not None:
        made = plugin(**{key: _value(text) for key, text in options.items() if key not in own})
        # Without the place of the call, which is in this file and not in the user's.
        problems += [Problem(each.path, each.message, each.suggestion) for each in made.problems]
    if problems:
        raise invalid(*problems)
    assert isinstance(settings, model)
    return settings, made


def _plugin(kind: registry.Kind, name: str, problems: list[Problem]) -> type[Any] | None:
    if name.partition(".")[0] == "spark":
        what = f"{name!r} is Spark itself"
        problems.append(Problem("connector", what, "read and write with Spark's own formats"))
        return None
    try:
        return registry.find(kind, name)
    except registry.UnknownPlugin as unknown:
        problems.append(Problem("connector", unknown.message, unknown.suggestion))
        return None


def _value(text: str) -> Any:
    """The value of an option: a list or an object is given as JSON, all else is text."""
    if text[:1] in ("[", "{"):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text)
    return text


@contextmanager
def note_suggestions() -> Iterator[None]:
    """Add the suggestion of our errors to their traceback, which is all that Spark shows."""
    try:
        yield
    except ConduitError as error:
        if error.suggestion and not isinstance(error, PipelineInvalid):
            error.add_note(f"What to do: {error.suggestion}.")
        raise


@contextmanager
def on_executor(folder: str) -> Iterator[None]:
    """Change to the driver's working directory, if it exists here; name the machine on which a connector is missing."""
    with suppress(OSError):
        os.chdir(folder)
    with note_suggestions():
        try:
            yield
        except (PipelineInvalid, EnvironmentUnfit, ImportError) as error:
            raise FatalError(
                f"the connector cannot be built on executor {socket.gethostname()}: {error}",
                suggestion="install there what is installed on the driver, for example with spark.archives",
            ) from error

"""The log destination: writes every record to the log of the process."""

import logging
from typing import Literal, TypedDict, Unpack

from pydantic import Field

from conduit_py import sdk
from conduit_py.sdk import Batch, Options, RecordRefused

_logger = logging.getLogger("conduit_py.log")


class DestinationOptions(Options):
    """Options of the log destination."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="how important it is")
    message: str = Field(default="record", description="what stands before each record")


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    level: Literal["debug", "info", "warning", "error"]
    message: str


class Destination(sdk.DestinationConnector[DestinationOptions]):
    """Logs each record in full, in OpenCDC's JSON form, to the logger `conduit_py.log`.

    At-least-once up to the logging system: a record counts as handled once it is logged, whatever the level and
    the handlers of the logger do with it. A record that has no JSON form is refused, unless the level is off.
    """

    # Mostly it is quick, or nobody listens. Behind a slow handler the runtime moves `write` to a thread.
    blocking = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def write(self, batch: Batch) -> dict[int, str]:
        level, message = logging.getLevelNamesMapping()[self.options.level.upper()], self.options.message
        refused: dict[int, str] = {}
        # What no handler would get need not be encoded, nor its record be made.
        if not _logger.isEnabledFor(level):
            return refused
        for index, record in enumerate(batch.records):
            try:
                text = record.to_json().decode()
            except RecordRefused as error:
                refused[index] = error.message
            else:
                _logger.log(level, "%s %s", message, text)
        return refused

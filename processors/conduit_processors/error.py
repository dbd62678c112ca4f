"""`error` refuses records."""

from pydantic import Field

from conduit_processors.template import Template
from conduit_py.sdk import Options, Processor, Record, RecordRefused


class ErrorOptions(Options):
    """Options of error."""

    message: Template = Field(
        default=Template("error processor triggered"),
        description="why the record is refused: text, with references to the record in {{ }}",
    )


class Error(Processor[ErrorOptions]):
    """Refuses every record it sees, so it becomes a dead letter; `Processor(id, Error(), when=…)` chooses which."""

    blocking = False

    def process(self, record: Record) -> Record:
        raise RecordRefused(self._message(record))

    def _message(self, record: Record) -> str:
        message = self.options.message
        try:
            return message.render(record)
        except RecordRefused as refused:
            # The message matters more than what it could not say.
            return f"{message} ({refused.message})"

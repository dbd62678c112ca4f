"""`model.call` asks an HTTP endpoint about several records at once, such as a model that somebody serves."""

from collections.abc import Sequence
from typing import Any, Required, Unpack

import httpx2
from conduit_connectors.http.connection_options import HttpUrl
from conduit_connectors.http.json_path import JsonPath
from pydantic import Field

from conduit_processors.field_processor import Inner
from conduit_processors.model.endpoint import EndpointArguments, EndpointOptions, EndpointProcessor
from conduit_py.sdk import Record, RecordRefused, Result
from conduit_py.sdk.template import FieldPath, kind_of


class CallOptions(EndpointOptions):
    """Options of model.call."""

    url: HttpUrl = Field(description="the endpoint, which gets a POST with a JSON body")
    field: FieldPath = Field(
        default_factory=lambda: FieldPath.of(".Payload.After"), description="the field that is sent; without it, all"
    )
    into: Inner = Field(description="the field that gets the answer")
    inputs: str | None = Field(
        default=None, min_length=1, description="the name under which the list is sent; None: the body is the list"
    )
    parameters: dict[str, Any] = Field(default={}, description="what else is sent beside `inputs`")
    outputs: JsonPath = Field(
        default_factory=lambda: JsonPath(""), description="where the list of answers is; without it, the whole body"
    )


class CallArguments(EndpointArguments, total=False):
    """CallOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    field: str | FieldPath
    into: Required[str | FieldPath]
    inputs: str | None
    parameters: dict[str, Any]
    outputs: str | JsonPath


class Call(EndpointProcessor[CallOptions]):
    """Sends a list with a value of each record, and puts its answer into each: the first of the list into the first.

    The endpoint answers with a list of the same length. An answer `{"error": "…"}` in the list refuses its record
    alone. A function of your own in place of an endpoint is `@processor(batch=True)`. With `batch_seconds=2` of its
    `Processor` records wait so long for others, until there are `batch_size`.
    """

    def __init__(self, **options: Unpack[CallArguments]) -> None:
        super().__init__(**options)

    def url(self) -> httpx2.URL:
        return httpx2.URL(self.options.url)

    def question(self, record: Record) -> Any:
        value = self.options.field.get(record)
        if isinstance(value, bytes):
            raise RecordRefused(f"{self.options.field}: cannot be sent as JSON: it is {kind_of(value)}")
        return value

    def body(self, questions: Sequence[Any]) -> Any:
        if self.options.inputs is None:
            return list(questions)
        return {**self.options.parameters, self.options.inputs: list(questions)}

    def answers(self, body: Any, count: int) -> Sequence[Any]:
        found = self.options.outputs.find(body)
        if not isinstance(found, list) or len(found) != count:
            where = str(self.options.outputs) or "the body"
            raise ValueError(f"{where} is no list of {count} answers")
        return found

    def result(self, record: Record, answer: Any) -> Result:
        if isinstance(answer, dict) and answer.keys() == {"error"}:
            raise RecordRefused(f"the endpoint answers {str(answer['error'])[:200]!r}")
        self.options.into.set(record, answer)
        return record

"""`embed` makes a vector of a text, with a model behind an API like that of OpenAI."""

import math
from collections.abc import Sequence
from typing import Any, Required, Unpack

import httpx2
from conduit_connectors.http.connection_options import HttpUrl
from pydantic import Field

from conduit_processors.field_processor import Inner
from conduit_processors.model.endpoint import EndpointArguments, EndpointOptions, EndpointProcessor
from conduit_py.sdk import Record, RecordRefused, Result
from conduit_py.sdk.template import FieldPath, kind_of


class EmbedOptions(EndpointOptions):
    """Options of embed."""

    field: FieldPath = Field(description="the field with the text")
    into: Inner = Field(description="the field that gets the vector, a list of numbers")
    model: str = Field(min_length=1, description="the name of the model, such as text-embedding-3-small")
    url: HttpUrl = Field(
        default="https://api.openai.com/v1",
        description="the API, to which /embeddings is added",
    )
    dimensions: int | None = Field(default=None, ge=1, description="how many numbers a vector has; None: the model's")


class EmbedArguments(EndpointArguments, total=False):
    """EmbedOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]
    into: Required[str | FieldPath]
    model: Required[str]
    url: str
    dimensions: int | None


class Embed(EndpointProcessor[EmbedOptions]):
    """Puts the vector of a text into the record. Several texts are sent in one request.

    A text that the model does not take refuses its record alone, and so does a field that is no text or empty. All
    vectors of a run have the same length.
    """

    _length: int | None = None

    def __init__(self, **options: Unpack[EmbedArguments]) -> None:
        super().__init__(**options)

    def url(self) -> httpx2.URL:
        url = httpx2.URL(self.options.url)
        return url.copy_with(path=f"{url.path.rstrip('/')}/embeddings")

    def question(self, record: Record) -> str:
        text = self.options.field.get(record)
        if not isinstance(text, str):
            raise RecordRefused(f"{self.options.field}: has no vector: it is {kind_of(text)} and not a text")
        if not text.strip():
            raise RecordRefused(f"{self.options.field}: has no vector: it is empty")
        return text

    def body(self, questions: Sequence[Any]) -> dict[str, Any]:
        wanted = {"model": self.options.model, "input": list(questions), "encoding_format": "float"}
        return wanted | ({} if self.options.dimensions is None else {"dimensions": self.options.dimensions})

    def answers(self, body: Any, count: int) -> list[list[float]]:
        found = body.get("data") if isinstance(body, dict) else None
        if not isinstance(found, list) or len(found) != count:
            raise ValueError(f"no list `data` of {count} vectors")
        # In the order of `index`: nothing else says which text a vector is of.
        vectors: dict[int, list[float]] = {}
        for each in found:
            index = each.get("index") if isinstance(each, dict) else None
            if type(index) is int:
                vectors[index] = _vector(each.get("embedding"))
        if vectors.keys() != set(range(count)):
            raise ValueError(f"vectors that are not numbered from 0 to {count - 1}")
        for vector in vectors.values():
            self._length = self._length or self.options.dimensions or len(vector)
            if len(vector) != self._length:
                raise ValueError(f"a vector with {len(vector)} numbers, and not {self._length}")
        return [vectors[index] for index in range(count)]

    def result(self, record: Record, answer: Any) -> Result:
        self.options.into.set(record, answer)
        return record


def _vector(value: Any) -> list[float]:
    if not isinstance(value, list) or not value or not all(type(each) in (int, float) for each in value):
        raise ValueError("a vector that is no list of numbers")
    if not all(map(math.isfinite, value)):
        raise ValueError("a vector with a number that is not finite")
    return [float(each) for each in value]

"""EndpointProcessor: asks an HTTP endpoint about several records at once, and finds those that it refuses."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, TypeVar

import httpx2
from conduit_connectors.http.client import HttpReply, place
from conduit_connectors.http.connection_options import ConnectionArguments, ConnectionOptions
from conduit_connectors.http.pacing import is_transient, retry_after_seconds
from conduit_connectors.http.session import HttpSession
from pydantic import Field

from conduit_py.sdk import (
    Batch,
    FatalError,
    Processor,
    Record,
    RecordRefused,
    Result,
    TransientError,
    decode_json,
    encode_json,
)

_REFUSED = frozenset({400, 413, 415, 422})
"""What an endpoint answers to content that it does not take. Any other 4xx is about the client."""


_JSON = {"content-type": "application/json"}


class EndpointOptions(ConnectionOptions):
    """How records are put together into requests, and how those are made."""

    batch_records_max: int = Field(default=64, ge=1, description="the most records of one request")
    batch_bytes_max: int = Field(default=1024 * 1024, ge=1, description="about the most bytes of one request")
    timeout_seconds: float = Field(default=60.0, gt=0, description="how long one request and its whole answer may take")


class EndpointArguments(ConnectionArguments, total=False):
    """EndpointOptions as a caller writes them, for editors and type checkers."""

    batch_records_max: int
    batch_bytes_max: int


class _Question(TypedDict):
    index: int
    value: Any
    size: int


OptionsT = TypeVar("OptionsT", bound=EndpointOptions)


class EndpointProcessor(Processor[OptionsT], ABC):
    """Cuts a batch into requests, and puts what is answered into the records.

    A batch is what comes together. `Processor(…, batch_seconds=2, batch_size=64)` lets records wait for others.

    A request that the endpoint refuses for its content is divided until the records are found that it does not take:
    only those are refused. While it cannot be reached, or asks to wait, nothing is refused: the pipeline waits, and
    starts again in the end.
    """

    blocking = False
    _session: HttpSession | None = None

    @abstractmethod
    def url(self) -> httpx2.URL: ...

    @abstractmethod
    def question(self, record: Record) -> Any:
        """Return what is asked about a record, as a JSON value. Raises RecordRefused."""

    @abstractmethod
    def body(self, questions: Sequence[Any]) -> Any:
        """Return the body of a request, as a JSON value."""

    @abstractmethod
    def answers(self, body: Any, count: int) -> Sequence[Any]:
        """Return one answer for each question, in order. Raises ValueError with what is wrong with the body."""

    @abstractmethod
    def result(self, record: Record, answer: Any) -> Result:
        """Return what the answer makes of the record."""

    def open(self) -> None:
        self._url = self.url()
        self._session = HttpSession(self.options, str(self._url))

    async def process_batch(self, batch: Batch) -> Sequence[Result]:
        results: list[Result] = [None] * len(batch)
        questions: list[_Question] = []
        for index, record in enumerate(batch.records):
            try:
                value = self.question(record)
                questions.append(_Question(index=index, value=value, size=len(encode_json(value))))
            except RecordRefused as refusal:
                results[index] = refusal
        for group in self._groups(questions):
            await self._ask(batch, group, results)
        return results

    def _groups(self, questions: Sequence[_Question]) -> Iterator[list[_Question]]:
        group: list[_Question] = []
        size = 0
        for question in questions:
            full = (
                len(group) == self.options.batch_records_max or size + question["size"] > self.options.batch_bytes_max
            )
            if group and full:
                yield group
                group, size = [], 0
            group.append(question)
            size += question["size"]
        if group:
            yield group

    async def _ask(self, batch: Batch, group: Sequence[_Question], results: list[Result]) -> None:
        reply = await self._request(encode_json(self.body([each["value"] for each in group])))
        if reply.status in _REFUSED:
            if len(group) == 1:
                what = f"{place(self._url)} answers {reply.status} {reply.excerpt!r}"
                results[group[0]["index"]] = RecordRefused(what)
                return
            middle = len(group) // 2
            await self._ask(batch, group[:middle], results)
            await self._ask(batch, group[middle:], results)
            return
        if not 200 <= reply.status < 300:
            raise self._unusable(reply)
        for question, answer in zip(group, self._parse(reply, len(group)), strict=True):
            index = question["index"]
            try:
                results[index] = self.result(batch.records[index], answer)
            except RecordRefused as refusal:
                results[index] = refusal

    def _parse(self, reply: HttpReply, count: int) -> Sequence[Any]:
        try:
            return self.answers(decode_json(reply.body), count)
        except (RecordRefused, ValueError) as error:
            # Not the fault of a record: answers that are mixed up must never get into records.
            raise FatalError(
                f"{place(self._url)} answers with something else than was asked for: {error}",
                suggestion="check the url",
            ) from error

    async def _request(self, body: bytes) -> HttpReply:
        session = self._session
        assert session is not None, "opened"
        return await session.request(lambda: session.send("POST", self._url, body, defaults=_JSON), self._url)

    def _unusable(self, reply: HttpReply) -> Exception:
        what = f"{place(self._url)} answers {reply.status} {reply.excerpt!r}"
        if is_transient(reply.status):
            return TransientError(what, retry_after=retry_after_seconds(reply.headers))
        hint = "check the credentials" if reply.status in (401, 403) else "check the url and the model"
        return FatalError(what, suggestion=hint)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

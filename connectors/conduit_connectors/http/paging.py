"""PollState: where the reading of an API is, between two requests. It is the checkpoint of the source."""

from typing import Any, Final

import httpx2
import msgspec

from conduit_connectors.http.client import HttpReply, join
from conduit_connectors.http.source_options import SourceOptions
from conduit_py.sdk import FatalError

SEEN_MAX: Final = 100
CURSOR_SIZE_MAX: Final = 8192

Since = str | int | float | None


class PollState(msgspec.Struct, frozen=True):
    """The next request of a pass, and what the pass has met so far.

    `since` is where the pass began and stays until its end, so that pages may come in any order. Then it becomes
    `highest`. An API that filters with `>=` gives the records of that value again: `seen` has the hashes of the first
    `SEEN_MAX` of them, each as often as it was given. The others are given again by each pass.
    """

    since: Since = None
    seen: tuple[str, ...] = ()
    highest: Since = None
    highest_seen: tuple[str, ...] = ()
    next: str | int | None = None
    """A cursor, the number of a page, an offset, or a link; None is the first page."""
    done: bool = False
    """True after the last page of a pass."""
    round: int = 0
    """The number of passes that read everything. It keeps their positions apart."""

    def encode(self) -> dict[str, Any]:
        # By the default of each field: 0 is a value of `since`, and a cursor.
        values, defaults = msgspec.structs.asdict(self), msgspec.structs.asdict(PollState())
        return {name: value for name, value in values.items() if value != defaults[name]}

    @classmethod
    def decode(cls, checkpoint: Any, options: SourceOptions) -> "PollState":
        """Return the state of a checkpoint; None is the beginning. Raises FatalError for that of another source."""
        if checkpoint is None:
            return cls(since=options.since_start)
        try:
            return msgspec.convert(checkpoint, cls)
        except msgspec.ValidationError as error:
            raise FatalError(
                f"the stored position is not one of an HTTP source: {error}",
                suggestion="give this source another id, or set its position",
            ) from error

    def recognising(self, value: Since, name: str) -> "PollState | None":
        """Return the state after a record that an earlier pass gave; None if it is new."""
        if value is None or value != self.since or name not in self.seen:
            return None
        # One of them only: records may be equal, and the API may have one more of them now.
        index = self.seen.index(name)
        rest = self.seen[:index] + self.seen[index + 1 :]
        return msgspec.structs.replace(self, seen=rest).noticing(value, name)

    def noticing(self, value: Since, name: str) -> "PollState":
        """Return the state after a record with this value and this hash."""
        if value is None:
            return self
        if self.highest is not None and isinstance(value, str) != isinstance(self.highest, str):
            raise FatalError(
                f"records have values of two types at since_path: {self.highest!r} and {value!r}"[:300],
                suggestion="values must be all numbers, or all texts that sort, such as 2026-11-17T03:00:00Z",
            )
        if self.highest is None or value > self.highest:  # type: ignore[operator]
            return msgspec.structs.replace(self, highest=value, highest_seen=(name,))
        if value == self.highest:
            return msgspec.structs.replace(self, highest_seen=(*self.highest_seen, name)[:SEEN_MAX])
        return self

    def ending(self, options: SourceOptions) -> "PollState":
        """Return the state after the last page of a pass."""
        kept = self.next if options.paging == "offset" and options.since_param is None else None
        whole = kept is None and options.since_param is None
        since, seen = self.since, self.seen
        if self.highest is not None:
            if since is None or isinstance(since, str) != isinstance(self.highest, str) or self.highest > since:  # type: ignore[operator]
                since, seen = self.highest, self.highest_seen
            elif self.highest == since:
                seen = (*self.highest_seen, *seen)[:SEEN_MAX]
        return PollState(since=since, seen=seen, next=kept, done=True, round=self.round + whole)

    def beginning(self) -> "PollState":
        """Return the state at the first page of the next pass."""
        return msgspec.structs.replace(self, done=False)


def request_url(state: PollState, options: SourceOptions) -> httpx2.URL:
    """Return the URL of the next request."""
    url = httpx2.URL(options.url)
    if options.paging == "link" and state.next is not None:
        return join(url, str(state.next))
    params = {name: str(value) for name, value in options.params.items()}
    if options.since_param is not None and state.since is not None:
        params[options.since_param] = str(state.since)
    if options.paging == "page":
        params[options.page_param] = str(options.first_page if state.next is None else state.next)
    elif options.paging == "offset":
        params[options.offset_param] = str(state.next or 0)
    elif options.paging == "cursor" and state.next is not None:
        params[options.cursor_param] = str(state.next)
    return url.copy_merge_params(params)


def next_page(state: PollState, options: SourceOptions, reply: HttpReply, body: Any, count: int) -> str | int | None:
    """Return what leads to the page after this one; None if this is the last."""
    if options.paging == "page":
        # Not by a short page: some APIs filter after they have counted. The empty page after the last one is certain.
        return (options.first_page if state.next is None else int(state.next)) + 1 if count else None
    if options.paging == "offset":
        return int(state.next or 0) + count if count else None
    if options.paging == "cursor":
        assert options.cursor_path is not None
        return _cursor(options.cursor_path.find(body))
    if options.paging == "link":
        # The library has the grammar of the header, and offers it on its own kind of answer.
        # As bytes: of text it takes ASCII only.
        header = reply.headers.get("link", "").encode(errors="replace")
        links = httpx2.Response(200, headers=[(b"link", header)]).links
        link = links.get("next", {}).get("url")
        return str(join(httpx2.URL(reply.url), link)) if link else None
    return None


def _cursor(value: Any) -> str | int | None:
    if value is None or value is False or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > CURSOR_SIZE_MAX:
        raise FatalError(
            f"what is at cursor_path is no cursor: {str(value)[:100]!r}",
            suggestion="check cursor_path: text or a number",
        )
    return value

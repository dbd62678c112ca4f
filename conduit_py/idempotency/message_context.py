"""MessageContext: what is done when a message was handled: first the commit, then the ack, whatever fails."""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias

Moment: TypeAlias = Literal["commit", "rollback", "ack", "nack", "close"]
Action: TypeAlias = Callable[[], object]


class MessageContext:
    """For an application that takes messages from a queue by itself: collects actions, runs each list once.

    `complete` commits or rolls back and only then acks or nacks, as `set_result` said. If the first fails the
    message is nacked, so that it comes again, and the error is raised. Leaving the block closes the context:
    what was not completed is rolled back and nacked. An error for which there is nobody left to raise it to
    goes to the `on_error` actions.
    """

    def __init__(self) -> None:
        self._actions: dict[Moment, list[Action]] = {
            "commit": [], "rollback": [], "ack": [], "nack": [], "close": [],
        }  # fmt: skip
        self._on_error: list[Callable[[BaseException], object]] = []
        self._result: tuple[bool, bool] | None = None
        self._completed = False
        self._closed = False

    def on(self, moment: Moment, action: Action) -> None:
        """Have `action` called at that moment, after those that were added before it."""
        if self._completed or self._closed:
            raise RuntimeError(f"the message is settled already: nothing more can be done on {moment}")
        self._actions[moment].append(action)

    def on_error(self, action: Callable[[BaseException], object]) -> None:
        self._on_error.append(action)

    def set_result(self, *, commit: bool, ack: bool) -> None:
        """Say how the message was handled; the last word counts."""
        self._result = commit, ack

    def complete(self) -> None:
        """Carry out the result. Raises RuntimeError when there is none yet."""
        if self._result is None:
            raise RuntimeError("set_result must say first whether the message is committed and acked")
        commit, ack = self._result
        self._completed = True
        try:
            self._run("commit" if commit else "rollback")
        except BaseException:
            self._run_or_report("nack")
            # The message comes again: to ack it when the context is closed would lose it.
            self._actions["ack"].clear()
            raise
        self._run("ack" if ack else "nack")

    def close(self) -> None:
        """Settle what was not completed, then run the close actions. Closing twice is closing once."""
        if self._closed:
            return
        self._closed = True
        if not self._completed:
            self._run_or_report("rollback")
            self._run_or_report("nack")
        self._run_or_report("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, moment: Moment) -> None:
        actions, self._actions[moment] = self._actions[moment], []
        for action in actions:
            action()

    def _run_or_report(self, moment: Moment) -> None:
        try:
            self._run(moment)
        # The last border: the message is settled, and there is nobody else to tell.
        except Exception as error:
            for action in self._on_error:
                action(error)

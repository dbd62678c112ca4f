"""MessageContext: commits before it acks a message, and nacks the message if the commit fails."""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias

Moment: TypeAlias = Literal["commit", "rollback", "ack", "nack", "close"]
Action: TypeAlias = Callable[[], object]


class MessageContext:
    """The actions at the end of a message, for an application that reads a queue itself. Each action runs once.

    `complete` commits or rolls back, and only then acks or nacks, as set by `set_result`. If the first step fails,
    the message is nacked, so that it is delivered again, and the error is raised. Leaving the block closes the
    context: a message that was not completed is rolled back and nacked. Errors of `close` go to the `on_error`
    actions.
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
        """Call `action` at that moment, after the actions added before it."""
        if self._completed or self._closed:
            raise RuntimeError(f"the message is settled already: an action for {moment} would never run")
        self._actions[moment].append(action)

    def on_error(self, action: Callable[[BaseException], object]) -> None:
        self._on_error.append(action)

    def set_result(self, *, commit: bool, ack: bool) -> None:
        """Set how the message was handled. The last call counts."""
        self._result = commit, ack

    def complete(self) -> None:
        """Run the actions of the result. Raises RuntimeError if none was set."""
        if self._result is None:
            raise RuntimeError("call set_result first: it sets if the message is committed and acked")
        commit, ack = self._result
        self._completed = True
        try:
            self._run("commit" if commit else "rollback")
        # BaseException: an interrupted commit may have failed, so the message must be delivered again.
        except BaseException:
            self._run_or_report("nack")
            # The message is delivered again. An ack after this, on close, would lose it.
            self._actions["ack"].clear()
            raise
        self._run("ack" if ack else "nack")

    def close(self) -> None:
        """Roll back and nack if it was not completed, then run the close actions. A second call does nothing."""
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
        # Emptied before the first action runs: after an error `close` must not repeat those that succeeded.
        actions, self._actions[moment] = self._actions[moment], []
        for action in actions:
            action()

    def _run_or_report(self, moment: Moment) -> None:
        try:
            self._run(moment)
        # The message is settled, and no caller is left to raise this to.
        except Exception as error:
            for action in self._on_error:
                action(error)

"""The order of commit, ack and close of one message, whatever fails (vectors ME-06, ME-10, ME-11)."""

from collections.abc import Callable
from functools import partial

import pytest

from conduit_py.idempotency.tracker import MessageContext, Moment


class Noted:
    """A context whose every action is noted; those named in `failing` raise."""

    def __init__(self, *failing: Moment) -> None:
        self.done: list[str] = []
        self.context = MessageContext()
        for moment in ("commit", "rollback", "ack", "nack", "close"):
            self.context.on(moment, self._action(moment, moment in failing))
        self.context.on_error(lambda error: self.done.append(f"error {error}"))

    def _action(self, moment: Moment, fails: bool) -> Callable[[], None]:
        def act() -> None:
            self.done.append(moment)
            if fails:
                raise OSError(f"no {moment}")

        return act


@pytest.mark.parametrize(
    ("commit", "ack", "done"),
    [
        (True, True, ["commit", "ack", "close"]),
        (False, False, ["rollback", "nack", "close"]),
        (False, True, ["rollback", "ack", "close"]),
        (True, False, ["commit", "nack", "close"]),
    ],
)
def test_me_06_the_result_says_what_is_done_in_which_order(commit: bool, ack: bool, done: list[str]) -> None:
    noted = Noted()
    with noted.context as context:
        context.set_result(commit=commit, ack=ack)
        context.complete()

    assert noted.done == done


@pytest.mark.parametrize(
    ("failing", "commit", "done"),
    [
        (["commit"], True, ["commit", "nack", "close"]),
        (["rollback"], False, ["rollback", "nack", "close"]),
        (["rollback", "nack"], False, ["rollback", "nack", "error no nack", "close"]),
        (["ack"], True, ["commit", "ack", "close"]),
        (["nack"], False, ["rollback", "nack", "close"]),
    ],
    ids=str,
)
def test_me_06_a_failure_is_raised_and_nothing_is_acked_that_was_not_committed(
    failing: list[Moment], commit: bool, done: list[str]
) -> None:
    noted = Noted(*failing)
    noted.context.set_result(commit=commit, ack=commit)
    with pytest.raises(OSError, match=f"no {failing[0]}"), noted.context as context:
        context.complete()

    assert noted.done == done


def test_me_06_what_was_not_completed_is_rolled_back_and_nacked_when_it_is_closed() -> None:
    noted = Noted("rollback")
    with noted.context as context:
        pass
    context.close()

    assert noted.done == ["rollback", "error no rollback", "nack", "close"]


def test_me_06_nothing_can_be_added_once_it_is_settled_and_nothing_completed_without_a_result() -> None:
    context = MessageContext()
    with pytest.raises(RuntimeError, match="call set_result first"):
        context.complete()
    context.set_result(commit=True, ack=True)
    context.complete()

    with pytest.raises(RuntimeError, match="settled already: an action for commit would never run"):
        context.on("commit", lambda: None)


def test_me_06_each_action_runs_once_in_the_order_added() -> None:
    done: list[int] = []
    with MessageContext() as context:
        for number in range(3):
            context.on("commit", partial(done.append, number))
        context.set_result(commit=True, ack=True)
        context.complete()
        context.close()

    assert done == [0, 1, 2]

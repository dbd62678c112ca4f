"""What a destination says about the records it was given, checked: at once, as refusals, or later, as answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import ContractBroken
from conduit_py.sdk.destination import Answer, refusal_text
from conduit_py.stream.plugin_calls import PluginCaller, plugin_errors


def check_refusals(node: str, said: Any, count: int) -> dict[int, str]:
    """What `write` returned about a batch of `count` records, as index → reason, lowest index first."""
    if not said:
        return {}
    if not isinstance(said, Mapping):
        rule = f"write() must return None or a mapping of index to reason, not {type(said).__name__}"
        raise ContractBroken(node, rule)
    for index in said:
        if not isinstance(index, int) or not 0 <= index < count:
            raise ContractBroken(node, f"write() refused record {index!r} of a batch of {count}")
    return {index: refusal_text(said[index]) for index in sorted(said)}


async def next_answers(node: str, calls: PluginCaller) -> Sequence[Answer | Batch]:
    """Wait for the next answers of a destination that gives them later."""
    if calls.inherited("answers"):
        raise ContractBroken(node, "says AckMode.LATER but has no answers()")
    with plugin_errors(node, "answers"):
        answers = await calls("answers")
    if not isinstance(answers, Sequence):
        raise ContractBroken(node, f"answers() must return a sequence of Answer, not {type(answers).__name__}")
    for answer in answers:
        if not isinstance(answer, Answer | Batch):
            raise ContractBroken(node, f"answers() must give Answer or Batch, not {type(answer).__name__}")
    if not answers:
        # One that polls without ever waiting would starve everybody else.
        await trio.lowlevel.checkpoint()
    return answers


async def answers_about(node: str, calls: PluginCaller, batch: Batch, refused: Mapping[int, str]) -> dict[int, str]:
    """Wait until all of a batch is answered for but what `write` has refused; which are refused now, and why."""
    waiting = {message: index for index, message in enumerate(batch.ids) if index not in refused}
    later: dict[int, str] = {}
    while waiting:
        for answer in await next_answers(node, calls):
            messages = answer.ids if isinstance(answer, Batch) else [answer.message]
            found = [waiting.pop(each) for each in messages if isinstance(each, MessageId) and each in waiting]
            if not found:
                raise not_awaited(node, messages[0] if messages else "a batch without messages")
            if isinstance(answer, Answer) and answer.refused is not None:
                later[found[0]] = answer.refused
    return later


def not_awaited(node: str, message: object) -> ContractBroken:
    return ContractBroken(node, f"answered for {message}, which is not waiting for an answer")

"""Filters: which of the messages that a step has read its handler gets to see."""

from collections.abc import Mapping

from conduit_py.delivery.steps.step import Message, Step


def wanted(step: Step, messages: Mapping[str, Message]) -> dict[str, Message]:
    """The messages that pass the filters of the step, by name. The others are consumed all the same."""
    if step.topics:
        return {name: message for name, message in messages.items() if _has_topic(step, message)}
    if step.types:
        return {name: message for name, message in messages.items() if message.get("type") in step.types}
    return dict(messages)


def _has_topic(step: Step, message: Message) -> bool:
    topics = message.get("topics")
    return isinstance(topics, Mapping) and any(topics.get(topic) for topic in step.topics)

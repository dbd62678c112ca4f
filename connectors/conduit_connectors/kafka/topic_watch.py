"""TopicWatch: notices that a topic was deleted and created again, and now has other messages at the same offsets."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from conduit_connectors.kafka.connection import ANSWER_SECONDS, FoundTopic, id_of
from conduit_py.sdk import FatalError

_LOOK_SECONDS = 5.0


class TopicWatch:
    """Compares the ids of topics, again and again while they are read. It never waits for the brokers.

    The client library goes on in the new topic at the offset that it had in the old one. What it gives of it until
    then has positions with the old id, so the next start refuses them too.
    """

    def __init__(self, admin: AdminClient, topics: Mapping[str, FoundTopic]) -> None:
        self.ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
        self._admin = admin
        self._asked: dict[str, Future[Any]] = {}
        self._looked_at = time.monotonic()

    def look(self) -> None:
        """Raise FatalError if a topic is another one than at the start."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS or not self.ids:
            return
        self._looked_at = time.monotonic()
        # The library keeps its log lines until somebody asks.
        self._admin.poll(0)
        if not all(answer.done() for answer in self._asked.values()):
            return
        for name, answer in self._asked.items():
            try:
                require_same(name, self.ids[name], id_of(answer.result(0)))
            except KafkaException:
                # The brokers are away, or the topic is: reading finds that out by itself.
                continue
        self._asked = self._admin.describe_topics(TopicCollection(list(self.ids)), request_timeout=ANSWER_SECONDS)


def require_same(topic: str, known: str | None, now: str | None) -> None:
    """Raise FatalError if a topic has another id than before. Brokers, and positions of old, may have none."""
    if known is None or now in (None, known):
        return
    raise FatalError(
        f"topic {topic} was created again, or is of another cluster: its id is {now}, and that of the topic that was"
        f" read was {known}",
        suggestion="reset the position of this source to read the topic from its beginning, or set it to the offsets"
        f' to read next, such as {{"{topic}:0": 17}}',
    )

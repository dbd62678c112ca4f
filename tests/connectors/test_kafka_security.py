"""Kafka behind TLS, passwords and access control: what a user may do, what is said otherwise, and what stays secret."""

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import kafka, memory
from conduit_connectors.kafka.connection import LogThrottle
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType
from kafka_topics import KafkaTopics, offsets_in

import conduit_py
from conduit_py import Destination, Pipeline, Source
from conduit_py.errors import FatalError, PipelineInvalid, TransientError
from conduit_py.graph.compile import compile_pipeline
from conduit_py.sdk import NothingYet, Reading
from conduit_py.status import Status
from conduit_py.testing.server_process import free_port
from conduit_py.testing.services import KafkaServer

TOPIC, ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


def options_of(server: KafkaServer, user: tuple[str, str]) -> dict[str, Any]:
    """How a user with a password reaches the guarded side of the broker."""
    name, password = user
    reach = {"servers": server.guarded_address, "tls": True, "ca_file": str(server.certificate)}
    return {**reach, "username": name, "password": password}


def run(source: Any, destination: Any, state: Path | None = None, **settings: Any) -> conduit_py.RunOutcome:
    pipeline = Pipeline("p", sources=[Source("in", source)], destinations=[Destination("out", destination)], **settings)
    return conduit_py.run(pipeline, state=state)


def error_of(outcome: conduit_py.RunOutcome, password: str) -> FatalError:
    assert outcome.status is Status.DEGRADED
    assert isinstance(outcome.error, FatalError), outcome.error
    assert password not in f"{outcome.error!r} {outcome.error} {outcome.error.suggestion}"
    return outcome.error


def test_a_user_who_may_just_read_one_topic_and_write_another_can_do_so_exactly_once(
    topics: KafkaTopics, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    taken, given, state = topics.create(), topics.create(), topics.create(cleanup_policy="compact")
    topics.fill(taken, [b"%d" % number for number in range(100)])
    user = topics.create_user(
        (TOPIC, taken, READ), (TOPIC, given, WRITE), (ID, given, WRITE), (ID, given, DESCRIBE),
        (TOPIC, state, READ), (TOPIC, state, WRITE),
    )  # fmt: skip
    reach = options_of(kafka_server, user)
    destination = kafka.Destination(**reach, topic=given, transactional_id=given, checkpoint_topic=state)
    source = kafka.Source(**reach, topics=[taken], tail=False)
    outcome = run(source, destination, tmp_path / "state", delivery="exactly_once")

    assert outcome.status is Status.COMPLETED, outcome.error
    assert topics.values(given) == topics.values(taken)


def test_a_password_in_plain_text_over_tls_reads_and_writes_exactly_once(
    topics: KafkaTopics, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    taken, given = topics.create(), topics.create()
    topics.fill(taken, [b"%d" % number for number in range(100)])
    reach = options_of(kafka_server, kafka_server.plain_user) | {"mechanism": "PLAIN"}
    destination = kafka.Destination(**reach, topic=given, checkpoint_topic=f"{given}-state")
    source = kafka.Source(**reach, topics=[taken], tail=False)
    outcome = run(source, destination, tmp_path / "state", delivery="exactly_once")
    wrong = kafka.Source(**reach | {"password": "hush-wrong"}, topics=[taken], tail=False)
    refused = error_of(run(wrong, memory.Destination(into=[])), "hush-wrong")

    assert outcome.status is Status.COMPLETED, outcome.error
    assert topics.values(given) == topics.values(taken)
    assert refused.suggestion == "check `username`, `password` and `mechanism`"


def test_a_rotated_password_ends_no_connection_and_loses_no_message(
    topics: KafkaTopics, kafka_server: KafkaServer
) -> None:
    topic = topics.create()
    name, password = topics.create_user((TOPIC, topic, READ), (TOPIC, topic, DESCRIBE))
    old = kafka.Source(**options_of(kafka_server, (name, password)), topics=[topic])
    member = Member(old)
    topics.fill(topic, [b"1"])
    read = [member.read()]
    rotated = topics.set_password(name)
    topics.fill(topic, [b"2"])
    read.append(member.read())
    position = member.encoded
    member.leave()
    refused = error_of(run(old, memory.Destination(into=[])), password)
    topics.fill(topic, [b"3"])
    member = Member(kafka.Source(**options_of(kafka_server, (name, rotated)), topics=[topic]), position)
    read.append(member.read())
    member.leave()

    assert read == [b"1", b"2", b"3"]
    assert refused.suggestion == "check `username`, `password` and `mechanism`"


def test_a_topic_that_the_user_may_not_use_is_named(topics: KafkaTopics, kafka_server: KafkaServer) -> None:
    hidden, seen = topics.create(), topics.create()
    user = topics.create_user((TOPIC, seen, DESCRIBE))
    reach = options_of(kafka_server, user)
    for topic in (hidden, seen):
        read = error_of(run(kafka.Source(**reach, topics=[topic]), memory.Destination(into=[])), user[1])
        written = error_of(run(memory.Source(records=[b"x"]), kafka.Destination(**reach, topic=topic)), user[1])

        for error in (read, written):
            assert f"as user {user[0]}: looking for topic {topic}: " in error.message
            assert "allow the user Read on the topic of a source, Write on that of a" in f"{error.suggestion}"


def test_a_group_or_a_transactional_id_that_the_user_may_not_use_is_named(
    topics: KafkaTopics, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    topic, state = topics.create(), topics.create(cleanup_policy="compact")
    allowed = [(each, operation) for each in (topic, state) for operation in (READ, WRITE)]
    user = topics.create_user(*((TOPIC, each, operation) for each, operation in allowed))
    reach = options_of(kafka_server, user)
    source = kafka.Source(**reach, topics=[topic], group="the-group")
    grouped = error_of(run(source, memory.Destination(into=[])), user[1])
    destination = kafka.Destination(**reach, topic=topic, transactional_id="the-id", checkpoint_topic=state)
    refused = run(memory.Source(records=[b"x"]), destination, tmp_path / "state", delivery="exactly_once")

    assert ": using the group the-group: " in grouped.message
    assert grouped.suggestion == "allow the user Read on the group"
    assert "starting transactions as the-id" in error_of(refused, user[1]).message


def test_a_broker_that_no_authority_vouches_for_is_refused(topics: KafkaTopics, kafka_server: KafkaServer) -> None:
    # The certificate of the broker is its own authority, which no machine trusts by itself.
    reach = options_of(kafka_server, topics.create_user()) | {"ca_file": None}
    error = error_of(run(kafka.Source(**reach, topics=["t"]), memory.Destination(into=[])), reach["password"])

    assert "certificate verify failed" in error.message
    assert error.suggestion == "check `tls`, `ca_file`, and the certificates of both sides"


class Member:
    """A member of a group that reads when it is asked to, and handles everything at once."""

    def __init__(self, declared: kafka.Source, position: bytes | None = None) -> None:
        self._source = declared.fresh()
        self._source.open(position)
        self.position: dict[str, int | str] = {}
        self.encoded = b""

    def read(self) -> Any:
        """The value of the next record, or None for progress without one."""
        while True:
            try:
                reading = trio.run(self._source.read, 1)
            except NothingYet:
                continue
            records = reading.records if isinstance(reading, Reading) else reading
            position = records[0].position if records else reading.position  # type: ignore[union-attr]
            assert position is not None
            trio.run(self._source.ack, [position])
            self.encoded, self.position = position, offsets_in(position)
            return records[0].payload.after if records else None

    def share(self) -> None:
        """Read until this member has one partition."""
        while len([name for name in self.position if name != "#"]) != 1:
            self.read()

    def leave(self) -> None:
        self._source.teardown()


def test_a_member_with_a_name_has_its_partition_again_after_a_restart_and_the_others_do_not_notice(
    topics: KafkaTopics,
) -> None:
    topic = topics.create(partitions=2)
    # The group gives up a member only after long: on a busy machine it is slow, not dead.
    group: dict[str, Any] = {
        "servers": topics.address,
        "topics": [topic],
        "group": topic,
        "config": {"session.timeout.ms": 300_000},
    }
    one = Member(kafka.Source(**group, member="one"))
    assert one.read() is None
    other = Member(kafka.Source(**group, member="other"))
    other.share()
    one.share()
    [ours] = other.position
    one.leave()
    topics.fill_each(topic, b"while it was away")
    assert other.read() == b"while it was away"
    one = Member(kafka.Source(**group, member="one"))
    # Given to the other member and back, its own partition would have left a mark in the other's position.
    back = one.read() or one.read()
    topics.fill_each(topic, b"later")
    assert other.read() == b"later"
    other.leave()
    one.leave()

    assert back == b"while it was away"
    assert other.position == {ours: 2}


@pytest.mark.parametrize(
    "name",
    ["ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "ssl_key"],
)
def test_a_secret_setting_is_refused_where_it_would_be_shown(name: str) -> None:
    source = kafka.Source(servers="h:1", topics=["t"], config={name: "hush-4711"})

    [problem] = source.problems
    assert f"{name} may be a secret, which belongs into `secret_config`" in problem.message
    assert "hush-4711" not in f"{problem}"


def test_settings_that_are_no_secrets_stay_in_config() -> None:
    config = {"ssl.ca.pem": "x", "ssl.certificate.pem": "x", "ssl.keystore.location": "x", "client.id": "x"}

    assert kafka.Source(servers="h:1", topics=["t"], config=config).problems == []


def test_a_guarantee_cannot_be_broken_by_a_secret_either() -> None:
    source = kafka.Source(servers="h:1", topics=["t"], secret_config={"enable.auto.commit": "true"})

    assert "the connector's guarantee rests on it" in source.problems[0].message


def test_secret_settings_reach_the_client_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    hidden = {"ssl.key.pem": "hush-4711", "ssl.certificate.pem": "x"}
    source = kafka.Source(servers="h:1", topics=["t"], tls=True, secret_config=hidden)
    outcome = run(source, memory.Destination(into=[]))

    assert source.options.settings()["ssl.key.pem"] == "hush-4711"
    assert isinstance(outcome.error, FatalError)
    assert outcome.error.message.startswith("the Kafka client refuses its settings: ")
    shown = f"{source.options!r} {source.options.model_dump_json()} {outcome.error!r} {caplog.text}"
    assert "hush-4711" not in shown


def line(text: str, at: float) -> logging.LogRecord:
    record = logging.LogRecord("conduit_py.kafka", logging.ERROR, "", 0, "%s", (text,), None)
    record.created = at
    return record


def test_a_line_that_the_client_repeats_is_logged_once_in_ten_seconds() -> None:
    throttle = LogThrottle()
    lines = [
        line(f"FAIL [rdkafka#producer-{n % 3}] h:9092: Connect failed: refused (after {n}ms in state CONNECT)", n / 20)
        for n in range(250)
    ]
    passed = [each.getMessage() for each in lines if throttle.filter(each)]

    assert passed == [
        "FAIL [rdkafka#producer-0] h:9092: Connect failed: refused (after 0ms in state CONNECT)",
        "FAIL [rdkafka#producer-2] h:9092: Connect failed: refused (after 200ms in state CONNECT) "
        "(and 199 times since the last such line)",
    ]
    assert throttle.filter(line("FAIL [rdkafka#producer-1] other:9092: Connect failed: refused", 12.5))


def test_a_broker_that_does_not_answer_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    source = kafka.Source(servers=f"127.0.0.1:{free_port()}", topics=["t"], answer_seconds=1).fresh()
    with pytest.raises(TransientError):
        source.open(None)

    assert 1 <= len([each for each in caplog.records if each.name == "conduit_py.kafka"]) <= 5


def test_two_destinations_that_would_fence_each_other_are_a_problem() -> None:
    def problems_of(*destinations: kafka.Destination, delivery: Any = "exactly_once") -> list[str]:
        named = [Destination(f"out{number}", each) for number, each in enumerate(destinations)]
        pipeline = Pipeline(
            "p", sources=[Source("in", memory.Source(records=[]))], destinations=named, delivery=delivery
        )
        try:
            compile_pipeline(pipeline)
        except PipelineInvalid as invalid:
            return [f"{each.path}: {each.message}; {each.suggestion}" for each in invalid.problems]
        return []

    one, same = (kafka.Destination(servers="h:1", topic="t") for _ in range(2))
    named = kafka.Destination(servers="h:1", topic="t", transactional_id="mine")

    [problem] = problems_of(one, same)
    assert problem == (
        "destinations.out1: claims the transactional_id 'conduit.<pipeline>.t' of Kafka at h:1, as out0 does: "
        "each would stop the other; give each of them its own"
    )
    assert problems_of(one, named) == []
    assert problems_of(one, kafka.Destination(servers="h:1", topic="u")) == []
    assert problems_of(one, kafka.Destination(servers="h:1", topic="t", checkpoint_topic="other")) != []
    assert problems_of(one, same, delivery="at_least_once") == []

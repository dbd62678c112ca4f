"""SourceOptions: which topics and partitions are read, for which group, and where to begin."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Required, Self

from pydantic import Field, field_validator, model_validator

from conduit_connectors.kafka.connection import TOPIC_NAME, KafkaArguments, KafkaOptions


class SourceOptions(KafkaOptions):
    """Options of the Kafka source."""

    topics: list[str] = Field(min_length=1, description="the topics to read, which must exist")
    group: str | None = Field(
        default=None, min_length=1, description="share the partitions with all members of this group; None: read all"
    )
    member: str | None = Field(
        default=None, min_length=1, description="a name that keeps the member's partitions over a restart, in a group"
    )
    partitions: list[int] | None = Field(
        default=None, min_length=1, description="read just these partitions of each topic, whatever a group does"
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="where to begin in a partition without a position"
    )
    tail: bool = Field(default=True, description="wait for more at the end; False, without a group: end there")
    format: Literal["bytes", "json"] = Field(
        default="bytes", description='"bytes": the value as it is. "json": an object; what is none is a dead letter'
    )
    read_committed: bool = Field(default=True, description="leave out what transactions aborted or have not committed")
    revoke_seconds: float = Field(
        default=30.0, gt=0, description="how long to handle what was read of partitions that another member is given"
    )

    reserved: ClassVar[frozenset[str]] = frozenset(
        {
            "group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy", "isolation.level",
            "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset",
            "enable.partition.eof", "allow.auto.create.topics",
        }
    )  # fmt: skip

    @field_validator("topics")
    @classmethod
    def _names(cls, topics: list[str]) -> list[str]:
        for name in topics:
            # librdkafka would take a name that begins with ^ as a pattern.
            if not TOPIC_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")
        return topics

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.tail and self.is_member:
            raise ValueError("tail=False needs `partitions`, or no `group`: the partitions of a member may change")
        if self.member is not None and not self.is_member:
            raise ValueError("`member` is for a `group` without `partitions`")
        return self

    @property
    def is_member(self) -> bool:
        return self.group is not None and self.partitions is None


class SourceArguments(KafkaArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    servers: Required[str]
    topics: Required[Sequence[str]]
    group: str | None
    member: str | None
    partitions: Sequence[int] | None
    start: Literal["earliest", "latest"]
    tail: bool
    format: Literal["bytes", "json"]
    read_committed: bool
    revoke_seconds: float

"""The acceptance suite for sources with progress, groups and schemas: each rule catches the source that breaks it."""

from typing import Any, ClassVar

import pytest
from change_source import ChangeSource

from conduit_py import metadata
from conduit_py.record import Record
from conduit_py.sdk import CollectionSchema, Reading, SchemaField
from conduit_py.testing import source_checks
from conduit_py.testing.acceptance import source_acceptance
from conduit_py.testing.connector_driver import DoesNotApply, SourceCase, run_check
from conduit_py.testing.source_checks import SOURCE_CHECKS


def by_flag() -> ChangeSource:
    return ChangeSource(sizes=[2, 0, 3, 1])


def by_marker() -> ChangeSource:
    return ChangeSource(sizes=[2, 0, 3, 1], ends="marker")


TestGroupsEndedByTheirLastRecord = source_acceptance(by_flag)
TestGroupsEndedByProgress = source_acceptance(by_marker)


class SkipsARecordAfterProgress(ChangeSource):
    async def open(self, position: bytes | None) -> None:
        await super().open(position)
        if position is not None and position.endswith(b":0"):
            self._done = 1


class ProgressAtARecord(ChangeSource):
    async def read(self, n: int) -> Reading:
        reading = await super().read(n)
        if reading.position is not None and reading.records:
            reading.position = reading.records[-1].position
        return reading


class EmptyProgress(ChangeSource):
    async def read(self, n: int) -> Reading:
        reading = await super().read(n)
        reading.position = b""
        return reading


class DoesNotDeclareGroups(ChangeSource):
    has_groups: ClassVar[bool] = False


class MixesGroups(ChangeSource):
    """With room for more than one record, it goes on to the next group."""

    async def read(self, n: int) -> Reading:
        first = await super().read(n)
        if n < 3 or not first.records or len(first.records) >= n:
            return first
        second = await super().read(1)
        return Reading([*first.records, *second.records], position=second.position, continues=second.continues)


class EndsEarlyIfAskedForMore(ChangeSource):
    async def read(self, n: int) -> Reading:
        reading = await super().read(n)
        return Reading(reading.records, position=reading.position, continues=n == 1 and reading.continues)


class NeverEndsAGroup(ChangeSource):
    async def read(self, n: int) -> Reading:
        reading = await super().read(n)
        reading.continues = True
        return reading


SCHEMA = CollectionSchema("orders", "1", (SchemaField("n", "integer"),))


class HasSchemas(ChangeSource):
    """Announces the schema with the first record since it was opened."""

    async def open(self, position: bytes | None) -> None:
        await super().open(position)
        self._announced = False

    async def read(self, n: int) -> Reading:
        reading = await super().read(n)
        for record in reading.records:
            assert isinstance(record, Record)
            record.metadata |= {metadata.COLLECTION: "orders", metadata.PAYLOAD_SCHEMA_VERSION: self.version}
        if reading.records and not self._announced:
            self._announced, reading.schemas = True, [SCHEMA]
        return reading

    version = "1"


class AnnouncesOnlyAtTheBeginning(HasSchemas):
    async def open(self, position: bytes | None) -> None:
        await super().open(position)
        self._announced = position is not None


class HasAnotherVersion(HasSchemas):
    version = "2"


@pytest.mark.parametrize("check", SOURCE_CHECKS)
def test_a_good_source_with_schemas_passes(check: Any) -> None:
    try:
        run_check(check, SourceCase(HasSchemas(sizes=[2, 3])))
    except DoesNotApply:
        assert check in (
            source_checks.ends_a_waiting_read_when_stopped,
            source_checks.refuses_snapshots_that_it_cannot_read,
            source_checks.starts_again_where_it_started,
        )


@pytest.mark.parametrize(
    ("check", "source", "says"),
    [
        (
            source_checks.resumes_after_progress_without_a_record,
            SkipsARecordAfterProgress,
            "opened at its progress b'1:0', it gives b'1:2'.*, not b'1:1'",
        ),
        (
            source_checks.gives_every_record_a_position_of_its_own,
            ProgressAtARecord,
            "a record and progress, have the position b'0:2'",
        ),
        (source_checks.reads_what_it_holds, EmptyProgress, "returned the position b'': it must be bytes"),
        (source_checks.never_reads_more_than_asked_for, DoesNotDeclareGroups, "does not declare has_groups"),
        (source_checks.has_whole_groups, MixesGroups, "with continues=True, but a group ends within"),
        (source_checks.has_whole_groups, EndsEarlyIfAskedForMore, "the group goes on when records are read one by one"),
        (source_checks.has_whole_groups, NeverEndsAGroup, "the source ends inside of a group"),
        (source_checks.announces_schemas_with_their_records, AnnouncesOnlyAtTheBeginning, "last announced is 'none'"),
        (source_checks.announces_schemas_with_their_records, HasAnotherVersion, "version '2', but the last .* is '1'"),
    ],
)
def test_each_rule_catches_the_source_that_breaks_it(check: Any, source: type[ChangeSource], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        run_check(check, SourceCase(source(sizes=[2, 3, 4])))

"""CheckpointTable: the progress of each pipeline, in the database that holds its data."""

from typing import ClassVar

from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_py.sdk import FatalError, Fenced


class CheckpointTable:
    """One row for each pipeline and place that it writes to: the fence, and the last commit or stage.

    `claim` and `begin` commit at once. Everything else is part of the open transaction.
    """

    name: ClassVar[str] = "conduit_checkpoint"

    def __init__(self, database: SqlDatabase, place: str) -> None:
        self._database = database
        self._place = place
        self._owner = ""
        self._fence = 0
        mark = database.mark
        self._mine = f"owner = {mark} AND place = {mark}"
        try:
            self._create()
        except (NotThisRow, StatementRefused):
            # PostgreSQL refuses a table that another pipeline creates at the same moment. Now it is there.
            self._create()

    def _create(self) -> None:
        key, number, data = self._database.key_type, self._database.number_type, self._database.types["bytes"]
        with self._database.transaction():
            self._database.create_missing(
                self.name,
                f"owner {key} NOT NULL, place {key} NOT NULL, fence {number} NOT NULL, begun {number} NOT NULL, "
                f"applied_fence {number} NOT NULL, applied {number} NOT NULL, changes {data}, "
                "PRIMARY KEY (owner, place)",
            )

    def claim(self, owner: str, fence: int) -> bytes | None:
        """Store the fence and return what was committed last. Raises Fenced if a higher fence is stored."""
        self._owner, self._fence = owner, fence
        mark = self._database.mark
        with self._database.transaction():
            insert = f"INSERT INTO {self.name} VALUES ({', '.join([mark] * 3)}, 0, 0, 0, NULL)"
            self._database.insert_missing(insert, (owner, self._place, fence))
            sql = f"UPDATE {self.name} SET fence = {mark} WHERE {self._mine} AND fence <= {mark}"
            if not self._database.run(sql, (fence, *self._key, fence)):
                raise self._fenced()
            [(changes,)] = self._database.rows(f"SELECT changes FROM {self.name} WHERE {self._mine}", self._key)
        return None if changes is None else bytes(changes)

    def switch_to(self, owner: str) -> bool:
        """Switch to another owner without claiming it; False if it never wrote to this place."""
        self._owner = owner
        # Without a transaction of ours some libraries begin one by themselves, and the next one cannot start.
        with self._database.transaction():
            return bool(self._database.rows(f"SELECT 1 FROM {self.name} WHERE {self._mine}", self._key))

    def begin(self) -> None:
        """Record that one destination stages to the claimed place. Raises FatalError if another one does."""
        mark = self._database.mark
        with self._database.transaction():
            sql = f"UPDATE {self.name} SET begun = {mark} WHERE {self._mine} AND fence = {mark} AND begun < {mark}"
            if not self._database.run(sql, (self._fence, *self._key, self._fence, self._fence)):
                raise FatalError(
                    f"two destinations of pipeline {self._owner!r} write to {self._place or 'tables'} of one database",
                    suggestion="use one destination, with table=None and the table in opencdc.collection",
                )

    def commit(self, changes: bytes) -> None:
        """Store what is committed. Raises Fenced if a newer claim exists."""
        mark = self._database.mark
        sql = f"UPDATE {self.name} SET changes = {mark} WHERE {self._mine} AND fence = {mark}"
        if not self._database.run(sql, (changes, *self._key, self._fence)):
            raise self._fenced()

    def applies(self, fence: int, number: int) -> bool:
        """Record that a stage is applied; False if it, or a later one, was applied before."""
        mark = self._database.mark
        sql = (
            f"UPDATE {self.name} SET applied_fence = {mark}, applied = {mark} WHERE {self._mine} AND "
            f"(applied_fence < {mark} OR (applied_fence = {mark} AND applied < {mark}))"
        )
        return bool(self._database.run(sql, (fence, number, *self._key, fence, fence, number)))

    @property
    def _key(self) -> tuple[str, str]:
        return self._owner, self._place

    def _fenced(self) -> Fenced:
        return Fenced(
            f"{self.name} has a newer run of pipeline {self._owner!r} than this one, which has fence {self._fence}: "
            "another process runs it, or the state directory is not the one that was used before",
            suggestion="run a pipeline in one place at a time, always with the same state directory",
        )

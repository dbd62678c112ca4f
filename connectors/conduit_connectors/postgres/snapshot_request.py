"""Checks a request to read a table as a whole before the source takes it: what cannot be done is refused at once."""

from uuid import uuid4

from conduit_connectors.postgres.catalog import PublishedTable, read_tables
from conduit_connectors.postgres.position import TableProgress
from conduit_connectors.postgres.publication import Publication, full_name, has_key
from conduit_connectors.postgres.session import DatabaseSession, StatementFailed
from conduit_py.sdk import SnapshotRefused, SnapshotRequest

_WHERE_MAX = 1000
"""A condition is in the position of every record until its snapshot ends."""


async def check_request(url: str, publication: Publication, request: SnapshotRequest) -> tuple[TableProgress, int]:
    """Return the request as what is left to read, and the number of its table. Raises SnapshotRefused."""
    if request.where is not None and len(request.where) > _WHERE_MAX:
        raise SnapshotRefused(
            f"the condition has {len(request.where)} characters, and at most {_WHERE_MAX} are stored",
            suggestion="write the keys into a table, and select from it in the condition",
        )
    # A session of its own: a caller that does not wait any longer must not leave a statement in that of the source.
    session = await DatabaseSession.connect(url)
    try:
        table = await _find_table(session, publication, full_name(request.collection))
        if request.where is not None:
            await check_condition(session, table, request.where)
    except StatementFailed as error:
        raise SnapshotRefused(
            f"PostgreSQL refuses the request for {request.collection}: {error}",
            suggestion="check the rights of the user",
        ) from error
    finally:
        session.close()
    return TableProgress(table.collection, where=request.where, request=uuid4().hex[:12]), table.oid


async def check_condition(session: DatabaseSession, table: PublishedTable, where: str) -> None:
    """Raise SnapshotRefused if PostgreSQL does not take the condition for the rows of this table."""
    try:
        await session.run("BEGIN READ ONLY")
        # In two places, in which only a whole expression fits both times: a text with `) OR (` would lift the row
        # filter of the publication. With an empty list of parameters, so that it is one statement and has none.
        await session.run(f"EXPLAIN SELECT CASE WHEN\n{where}\nTHEN 1 END FROM {table.quoted} WHERE (\n{where}\n)", [])
        await session.run("COMMIT")
    except StatementFailed as error:
        await session.run("ROLLBACK")
        raise SnapshotRefused(
            f"PostgreSQL refuses the condition for {table.collection}: {error}",
            suggestion="write what follows WHERE in a SELECT of this table, without parameters",
        ) from error


async def _find_table(session: DatabaseSession, publication: Publication, name: str) -> PublishedTable:
    published = {table.collection: table for table in await read_tables(session, publication.name)}
    wanted = None if publication.tables is None else [full_name(table) for table in publication.tables]
    table = published.get(name)
    if table is None:
        known = ", ".join(name for name in published if wanted is None or name in wanted)
        raise SnapshotRefused(
            f"the publication {publication.name} does not have the table {name}",
            suggestion=f"tables are {known}" if known else "add it to the publication",
        )
    if wanted is not None and name not in wanted:
        raise SnapshotRefused(
            f"the table {name} is not in `tables`, so its changes are not read", suggestion="add it to `tables`"
        )
    if not has_key(table):
        raise SnapshotRefused(
            f"the table {name} has no key that is published, so it cannot be read in chunks",
            suggestion="add a primary key",
        )
    return table

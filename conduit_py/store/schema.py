"""Schema: the tables of the state database, as version 1 had them and as each later version adds to them.

A version that was ever released is never changed: what comes later is a version of its own.
"""

_ENTRIES = """
CREATE TABLE entries (
    pipeline TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (pipeline, kind, node)
) WITHOUT ROWID
"""

_TRANSACTIONS = (
    "CREATE TABLE claims (owner TEXT PRIMARY KEY, fence INTEGER NOT NULL CHECK (fence > 0),"
    " committed INTEGER NOT NULL, checkpoint BLOB) WITHOUT ROWID",
    "CREATE TABLE owned (owner TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (owner, key))"
    " WITHOUT ROWID",
    # Keys come in no order, so the index is written all over; the rows lie in the order of their times, and
    # what is old is found at one end.
    "CREATE TABLE seen (number INTEGER PRIMARY KEY, scope TEXT NOT NULL, key BLOB NOT NULL, at REAL NOT NULL)",
    "CREATE UNIQUE INDEX seen_once ON seen (scope, key)",
    # AUTOINCREMENT: a number must not come again when the newest row was forwarded and removed.
    "CREATE TABLE intents (number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, target TEXT NOT NULL,"
    " key BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX intents_in_order ON intents (target, number)",
    "CREATE TABLE leases (target TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE shards (scope TEXT NOT NULL, shard TEXT NOT NULL, token TEXT NOT NULL, position BLOB NOT NULL,"
    " done INTEGER NOT NULL, updated REAL NOT NULL, PRIMARY KEY (scope, shard)) WITHOUT ROWID",
)

SCHEMA = _ENTRIES
"""What version 1 is created with."""
LATER: tuple[tuple[str, ...], ...] = (_TRANSACTIONS,)
"""What each later version adds to the one before it."""
FORMAT_VERSION = 1 + len(LATER)

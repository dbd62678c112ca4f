"""What survives a crash: positions and their history, pipeline states, claims, the outbox, shards, dead letters.

Read in this order:

- `store.py`: Store, the interface of every backend, and its promise of durability; `open_store` picks the backend.
- `claim.py`: Claim and Changes: the right to commit for an owner, and all that one transaction makes durable.
- `tables.py`: Tables, the rules of a transaction, and its faces for trio: the outbox, seen keys, shards.
- `dead_letter_store.py`, `stored_letter.py`, `letter_codec.py`: dead letters: the interface and its SQL, the values,
  their bytes.
- `sql_tables.py`: Tables in SQL and the dialects, written once for both databases.
- `memory.py`, `sqlite/`, `postgres/`: the backends.

A new backend implements Store, Tables and DeadLetterStore; tests/store/conftest.py runs every promise against it.
"""

"""A store in a PostgreSQL database, which several servers may share.

`store.py` is the store, with the lock that lets one server run a pipeline, and the pool that runs transactions on a
few connections. `tables.py` has the dialect, the statements about many rows, and the schema, which it also migrates.
"""

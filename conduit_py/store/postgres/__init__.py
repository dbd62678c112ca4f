"""A store in a PostgreSQL database, which several servers may share.

`store.py` is the store, with the lock that lets one server run a pipeline. `pool.py` runs transactions on a few
connections. `schema.py` creates and migrates the tables. `tables.py` has the dialect and the statements about
many rows.
"""

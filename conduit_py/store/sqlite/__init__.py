"""The default store: SQLite files in a directory that one process owns.

`store.py` is the store; its `GroupCommitter` is the one thread that owns the database: writes that wait at the same
time share a commit. `database.py` opens, creates and migrates a file, under the lock of `files.py`, which also
replaces a file whose disk failed. `tables.py` has the dialect and the statements about many rows; `letters.py` the dead
letters, in a file of their own. `backup.py` copies both files as they were at one moment.
"""

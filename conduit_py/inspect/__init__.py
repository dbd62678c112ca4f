"""Inspection of records while a pipeline runs, and edits of refused records.

`tap` holds samples of records for one reader, and `tap_point` takes them at a node. `record_view` makes a view of a
record, cut to a size and without secrets. It applies a user's edit of such a view to the record.
"""

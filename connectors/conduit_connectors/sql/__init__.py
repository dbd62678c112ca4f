"""What the SQL connectors have in common: records as rows, and data and checkpoint in one transaction.

In reading order: `destination`, `database` (what it needs of a connection), `row` (a record as a row), `table_writer`,
`table_fitter` with `column_fit` (tables and rows that do not fit each other), `checkpoint`. For sources: `keyset`.
"""

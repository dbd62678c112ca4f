"""The connectors that come with conduit-py, each in a module or package of its name.

The other modules are shared. By brokers: `broker_tls`, `message_content`. By databases: `sql`, `column_policy`,
`policy_options`, `ignored_fields`, and for their changes `change_queue` and `change_marks`. By lakes: `lake_source`,
`lake_parts`, `table_rows`. By readers of text: `lines`, `line_formats`, `json_lines`, `compression`, `integer_text`.
By several: `numbering` (positions that are a number), `probe_path`. `secret_managers` has where secrets come from.
"""

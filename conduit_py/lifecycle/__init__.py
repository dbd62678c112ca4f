"""Pipelines over time: started, recovered, stopped, replaced.

Read `supervisor` first: one pipeline. Then `fleet` (many in one process), `reloader` (a fleet that follows its files)
with `definition_diff`, `dead_letter_service` (dead letters of a fleet), and `pipeline_log` (what all of them log).
"""

"""Leased queues: messages that a worker holds for a while. Each is processed once, however often it is delivered.

In reading order: `leased_queue` (what a connector implements), `message_body` (what a message announces, and the
records of an announced object), `work_in_progress` (held messages and their leases), `source` (the source that all
queue connectors share).
"""

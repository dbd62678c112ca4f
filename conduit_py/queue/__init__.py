"""Leased queues: messages that are ours for a while, each processed once though delivered several times.

In reading order: `leased_queue` (what a connector implements), `message_body` (what a message announces),
`content` (records of an announced object), `lease` (keeps a message ours), `work_in_progress` (what is being
worked on), `options`, `source` (the source that all queue connectors share).
"""

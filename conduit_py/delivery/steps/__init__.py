"""Steps: functions joined by durable queues, each message taken through each of them exactly once.

Users import them from `conduit_py.steps`.
"""

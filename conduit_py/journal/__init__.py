"""The journal: a durable ordered log with registers, and the message ids that make reading it exactly-once."""

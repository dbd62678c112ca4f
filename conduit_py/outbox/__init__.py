"""Outboxes: messages sent after the commit of the transaction that wrote them, and never without it."""

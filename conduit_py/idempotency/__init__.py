"""Handling each message once: a processor for pipelines, trackers for applications with their own transactions."""

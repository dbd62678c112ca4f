"""Schema registries: what the processors that encode and decode with registered schemas have in common.

Read in this order: `options`, `client` (requests, time-outs, retries), `wire_format`, `schemas` (a schema with what
it refers to), `processors` (the loop over a batch, the cache of codecs).
"""

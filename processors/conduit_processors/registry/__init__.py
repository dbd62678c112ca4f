"""Schema registries: what the processors that encode and decode with registered schemas have in common.

Read in this order: `options`, `client` (requests, time-outs, retries, references), `wire_format`, `processors` (the
loop over a batch, the cache of codecs).
"""

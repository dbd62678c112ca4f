"""The processes in which a server runs pipelines: one of its own for each pipeline on Spark, and shares of the others.

What kills such a process ends the pipelines in it and no other. In reading order: `supervisor` (the server's side of a
pipeline, with invariants C1 to C4), `pool` (which pipeline runs in which process), `process` (starts and ends one),
`link` (what is sent between both sides), `program` (the child's side), `store` (the server's store, called from the
child).
"""

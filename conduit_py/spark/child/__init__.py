"""The process of its own in which a server runs a pipeline on Spark.

A Java that dies, hangs or runs out of memory then ends one pipeline and no other. In reading order: `supervisor` (the
server's side, with invariants C1 to C4), `process` (starts and ends the process, and the messages to it),
`program` (the child's side), `store` (the server's store, called from the child).
"""

"""The engine `spark`: executors read and process records, the driver writes them.

In reading order: `supervisor` (runs the pipeline), `split` (which nodes run where, and the plan for executors),
`remote_source` (starts jobs and reads their outcomes), `executors` (Spark's jobs and counts), `task` (what one executor
does), `outcome` (what became of a record, as bytes, and as records again on the driver), `read_ahead` (sources that
only the driver can read).

A record: RemoteSource → task on an executor → outcome → decoders on the driver → writer. Positions, acks, the ledger
and dead letters are the driver's, so every guarantee is that of one machine.
"""

"""The Spark of this process, for the engine and for connectors alike: one session, started when first needed.

In reading order: `shared_session` (which Spark, and how it starts and stops), `java` (what it runs on, and how its
process starts), `cluster` (checks before Spark starts, which would otherwise wait in silence), `job_group` (one user's
jobs, cancelled together), `errors` (what Spark's errors mean). Connectors import these from `conduit_py.sdk.spark`.
"""

from conduit_py.spark.session import java as java

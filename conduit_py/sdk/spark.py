"""What connectors that use Spark import: the session that a process shares, cancellable jobs, errors. Needs pyspark.

A connector inherits from `SparkConnector` and takes `SparkOptions`. It runs its jobs in `JobGroup.running()`, inside of
`spark_errors()`, which raises BadRows, FatalError or TransientError for whatever goes wrong there.
"""

from conduit_py.spark.session.errors import BadRows, JobCancelled, error_text, is_definition_error, spark_errors
from conduit_py.spark.session.job_group import JobGroup, SparkConnector
from conduit_py.spark.session.shared_session import SparkArguments, SparkOptions

__all__ = [
    "BadRows",
    "JobCancelled",
    "JobGroup",
    "SparkArguments",
    "SparkConnector",
    "SparkOptions",
    "error_text",
    "is_definition_error",
    "spark_errors",
]

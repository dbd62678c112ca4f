"""DataSource: the connectors of conduit-py as a format of Spark's, `format("conduit")`.

Register it with `spark.dataSource.register(DataSource)`.
"""

from pyspark.sql import datasource, types

from conduit_py.spark.format.border import explained
from conduit_py.spark.format.columns import READ
from conduit_py.spark.format.reader import Reader
from conduit_py.spark.format.settings import read_settings
from conduit_py.spark.format.stream_reader import StreamReader
from conduit_py.spark.format.writer import StreamWriter, Writer


class DataSource(datasource.DataSource):
    """A row for each record of a source, or a record for each row into a destination; as a batch or as a stream.

    The option `connector` names the connector as in YAML; those of conduit_py.spark.format.settings are the format's;
    all others are the connector's own, as text, or as JSON where they are lists or objects. Structured data comes
    as JSON. A record that its source cannot understand is a row too: `refused` says why, and `after` has what was
    read.

    Written are rows as they are read, or any others: their columns are then the fields of the payload. A
    destination that stages or keeps a checkpoint with its data (file, journal, sqlite, postgres) gets all rows of a
    job or none, and each batch of a stream once; any other at least once.
    """

    @classmethod
    def name(cls) -> str:
        return "conduit"

    def schema(self) -> types.StructType:
        # Only readers are asked for it. This is the first place that can say what is wrong with their options.
        with explained():
            read_settings(self.options)
        return READ

    def reader(self, schema: types.StructType) -> Reader:
        with explained():
            return Reader(self.options, schema)

    def streamReader(self, schema: types.StructType) -> StreamReader:  # noqa: N802
        return StreamReader(self.options, schema)

    def writer(self, schema: types.StructType, overwrite: bool) -> Writer:
        with explained():
            return Writer(self.options, schema, overwrite)

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        with explained():
            return StreamWriter(self.options, schema, overwrite)

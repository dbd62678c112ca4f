"""Files of a folder into a dataset of Parquet files, partitioned by country; a bucket is `s3://bucket/orders`."""

from conduit_connectors import objects

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": objects.Source(url="inbox/**/*.csv.gz")},
    destinations={"lake": objects.Destination(url="lake", format="parquet", partition_by=["country"])},
    delivery="exactly_once",
)

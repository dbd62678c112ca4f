"""What is new in an API, page by page, sent on to another one that ignores a key which it has seen."""

from conduit_connectors import http

from conduit_py import Pipeline

pipeline = Pipeline(
    "issues",
    sources={
        "api": http.Source(
            url="http://localhost:8000/link",
            records="data.items",
            paging="link",
            since_param="since",
            since_path="updated",
            requests_per_second=50,
        )
    },
    destinations={"other": http.Destination(url="http://localhost:9000/issues", honours_key=True)},
    delivery="exactly_once",
)

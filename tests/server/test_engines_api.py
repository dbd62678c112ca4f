"""Pipelines on Spark in the API, before any is started: what they run on, what is refused, what is kept secret."""

from typing import TYPE_CHECKING

from conduit_connectors import file
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Processor, Source, Spark
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.definition_diff import DefinitionDiff, diff_definitions
from conduit_py.redaction import redact

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite

KEY = "spark.hadoop.fs.s3a.secret.key"


def on_spark(*, add: int = 1, description: str = "") -> Pipeline:
    return Pipeline(
        "there",
        sources=[Source("in", file.Source(path="in.jsonl", format="json"))],
        processors=[Processor("plus", lambda record: record if add else None)],
        destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
        engine=Spark(master="local[2]", conf={KEY: "hush-hush", "spark.executor.memory": "2g"}),
        description=description,
    )


async def test_the_engine_is_shown_and_its_settings_are_not(open_site: "OpenSite", autojump_clock: MockClock) -> None:
    async with open_site("here") as site:
        await site.service.fleet.add(on_spark(description="with hush-hush"))
        there = (await site.client.get("/api/v1/pipelines/there")).json()
        both = (await site.client.get("/api/v1/pipelines")).json()["pipelines"]

        assert (there["engine"], there["spark_master"]) == ("spark", "local[2]")
        assert there["description"] == "with ***"
        assert [(each["id"], each["engine"], each["spark_master"]) for each in both] == [
            ("here", "trio", None),
            ("there", "spark", "local[2]"),
        ]


async def test_records_on_spark_cannot_be_tapped(open_site: "OpenSite", autojump_clock: MockClock) -> None:
    async with open_site() as site:
        await site.service.fleet.add(on_spark())
        refused = await site.client.get("/api/v1/pipelines/there/nodes/plus/tap")

        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "tap.impossible"


def test_only_what_is_called_a_secret_is_one() -> None:
    spark = on_spark().spark

    assert spark is not None
    assert [name for name, value in spark.conf.items() if redact(value) != value] == [KEY]


def test_a_processor_on_spark_is_not_exchanged_while_it_runs() -> None:
    before = compile_pipeline(on_spark())

    assert diff_definitions(before, compile_pipeline(on_spark(add=0))) == DefinitionDiff(
        restart_reason="plus, which runs on Spark,"
    )
    assert diff_definitions(before, compile_pipeline(on_spark(description="new"))) == DefinitionDiff(description=True)

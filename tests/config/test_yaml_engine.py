"""The keys `engine` and `spark` of a YAML file, which Conduit does not have."""

from collections.abc import Callable

from conduit_py.config.loaded import Loaded
from conduit_py.pipeline_settings import Spark

Load = Callable[..., Loaded]
Said = Callable[[Loaded], list[str]]


def document(*lines: str) -> str:
    more = "".join(f"    {line}\n" for line in lines)
    return (
        "version: 2.2\n"
        "pipelines:\n"
        "  - id: copy\n"
        f"{more}"
        "    connectors:\n"
        "      - {id: in, type: source, plugin: file, settings: {path: ./in.txt}}\n"
        "      - {id: out, type: destination, plugin: file, settings: {path: ./out.txt}}\n"
    )


def test_a_pipeline_runs_here_unless_it_says_otherwise(load: Load, said: Said) -> None:
    plain, named = load(document()), load(document("engine: spark"))
    settled = load(
        document(
            "engine: spark",
            "spark: {master: 'spark://host:7077', start-seconds: 30, conf: {spark.executor.memory: 2g}}",
        )
    )

    assert said(plain) == said(named) == said(settled) == []
    assert plain.pipelines[0].pipeline.settings.engine == "trio"
    assert named.pipelines[0].pipeline.spark == Spark()
    assert settled.pipelines[0].pipeline.spark == Spark(
        master="spark://host:7077", start_seconds=30, conf={"spark.executor.memory": "2g"}
    )


def test_problems_are_reported_with_their_place(load: Load, said: Said) -> None:
    wrong = load(document("engine: sparc"))
    alone = load(document("spark: {master: yarn}"))
    never = load(document("engine: spark", "spark: {start-seconds: 0}"))

    assert said(wrong) == [
        "pipelines.yaml:4: pipelines.copy.engine: must be trio or spark, not 'sparc' (did you mean 'spark'?)"
    ]
    assert said(alone) == ["pipelines.yaml:4: pipelines.copy.spark: requires engine: spark (add `engine: spark`)"]
    assert said(never) == [
        "pipelines.yaml:5: pipelines.copy.spark.start-seconds: Input should be greater than 0, not '0'"
    ]


def test_what_cannot_run_on_spark_is_reported_when_the_file_is_read(load: Load, said: Said) -> None:
    shared = load(document("engine: spark").replace("source, plugin: file", "source, plugin: sqlite.queue"))

    assert any("shares its work with other processes by leases" in each for each in said(shared)), said(shared)

    clock = load(document("engine: spark").replace("file, settings: {path: ./in.txt}", "clock"))
    assert any("ends with the other sources" in each for each in said(clock)), said(clock)

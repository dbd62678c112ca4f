"""One part of the benchmarks on Spark, in this process, which has a session of its own: prints its lines as JSON."""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from spark_cluster import PEER_CONF, SparkCluster

from benchmarks import spark_ends, spark_engine, spark_growth, spark_job, spark_latency
from benchmarks.spark_measure import Line, Meter, Used, absolute, digest, in_own_process, ratio, report, rounds
from benchmarks.workload import write_input
from conduit_py.spark.session.shared_session import SparkOptions, shared

LOCAL = SparkOptions(master="local[2,4]")
DELIVERIES: tuple[spark_engine.Delivery, ...] = ("at_least_once", "exactly_once")
TRICKLE = 50


def engine(folder: Path, records: int, turns: int) -> list[Line]:
    """The CPU of the engine against loops, and its speed against jobs of PySpark, all in one warm session."""
    source, meter = folder / "in.jsonl", Meter()
    write_input(source, records)
    with session_of(LOCAL) as session:
        contenders = loops(folder) | engines(folder, meter, LOCAL)
        contenders["job"] = lambda: meter.used(partial(spark_job.run, session, source, folder / "job"))
        contenders["text"] = lambda: meter.used(partial(spark_job.run_native, session, source, folder / "text"))
        taken = rounds(contenders, turns, warm_up=2, ready=loops(folder))
    same_bytes(folder, "job")
    found = absolute(taken, records)
    found += [Line("CPU, json loop again ÷ json loop", ratio(taken, "cpu_seconds", "json again", "json"))]
    for delivery in DELIVERIES:
        name = f"CPU per record, {delivery.replace('_', ' ')}"
        found.append(Line(f"{name} ÷ json loop", ratio(taken, "cpu_seconds", delivery, "json"), most=1.25))
        found.append(Line(f"{name} ÷ orjson loop", ratio(taken, "cpu_seconds", delivery, "orjson"), most=1.25))
        here = ratio(taken, "cpu_seconds", delivery, one_process(delivery))
        found.append(Line(f"{name} ÷ the same pipeline in one process", here, most=1.25))
    for delivery in DELIVERIES:
        name = f"speed on local[2], {delivery.replace('_', ' ')}"
        found.append(
            Line(f"{name} ÷ PySpark job between DataSources", ratio(taken, "seconds", "job", delivery), least=1)
        )
        found.append(Line(f"{name} ÷ PySpark job between text files", ratio(taken, "seconds", "text", delivery)))
    return found


def cluster(folder: Path, records: int, turns: int) -> list[Line]:
    """The speed of two executors of one core each against one process."""
    write_input(folder / "in.jsonl", records)
    with SparkCluster(folder / "cluster", workers=2, cores=1, memory="1g") as nodes:
        options = SparkOptions(master=nodes.url, conf=CLUSTER_CONF, start_seconds=300)
        with session_of(options) as session:
            until_both_are_there(session)
            contenders = loops(folder) | engines(folder, Meter(*nodes.workers.values()), options)
            # There are three Javas to get warm, and none of them does much.
            taken = rounds(contenders, turns, warm_up=4, ready=loops(folder))
    same_bytes(folder)
    found = absolute(taken, records)
    found += [Line("speed, json loop again ÷ json loop", ratio(taken, "seconds", "json", "json again"))]
    for delivery in DELIVERIES:
        name = f"speed on two executors, {delivery.replace('_', ' ')}"
        found.append(Line(f"{name} ÷ json loop", ratio(taken, "seconds", "json", delivery), least=1.6))
        found.append(Line(f"{name} ÷ orjson loop", ratio(taken, "seconds", "orjson", delivery), least=1.6))
        here = ratio(taken, "seconds", one_process(delivery), delivery)
        found.append(Line(f"{name} ÷ the same pipeline in one process", here, least=1.6))
    return found


def ends(folder: Path, records: int, turns: int) -> list[Line]:
    """The connectors against Spark's own calls."""
    with session_of(LOCAL) as session:
        found = spark_ends.destination_lines(session, LOCAL, folder, records // 2, turns)
        return found + spark_ends.source_lines(session, LOCAL, folder, records, turns)


def latency(folder: Path, records: int, turns: int) -> list[Line]:
    """The overhead of one job; a small run has fewer of them."""
    with session_of(LOCAL):
        return spark_latency.lines(LOCAL, folder, min(TRICKLE, max(10, records // 1000)))


def growth(folder: Path, records: int, turns: int) -> list[Line]:
    """More rows, in a session that has done nothing else."""
    with session_of(LOCAL) as session:
        return spark_growth.lines(session, LOCAL, folder, records, min(turns, 3))


PARTS: dict[str, Callable[[Path, int, int], list[Line]]] = {
    "engine": engine,
    "cluster": cluster,
    "ends": ends,
    "latency": latency,
    "growth": growth,
}

CLUSTER_CONF = {
    **PEER_CONF,
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "640m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@contextmanager
def session_of(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for everybody in this process, which stays warm."""
    session = shared.acquire(options)
    try:
        yield session
    finally:
        shared.release()


def loops(folder: Path) -> dict[str, Callable[[], Used]]:
    source = folder / "in.jsonl"
    works = {"json": "json", "json again": "json", "orjson": "orjson"}
    works |= {one_process(delivery): delivery for delivery in DELIVERIES}
    return {name: partial(in_own_process, work, source, folder / name) for name, work in works.items()}


def one_process(delivery: spark_engine.Delivery) -> str:
    """The pipeline on the engine for one machine, among the contenders."""
    return f"{delivery} in one process"


def engines(folder: Path, meter: Meter, options: SparkOptions) -> dict[str, Callable[[], Used]]:
    def contender(delivery: spark_engine.Delivery) -> Used:
        return meter.used(
            partial(spark_engine.run, folder / "in.jsonl", folder / f"{delivery}.jsonl", delivery, options)
        )

    return {delivery: partial(contender, delivery) for delivery in DELIVERIES}


def same_bytes(folder: Path, *jobs: str) -> None:
    """Everybody must have done the same work."""
    names = [*loops(folder), *(f"{each}.jsonl" for each in DELIVERIES)]
    outputs = {name: [folder / name] for name in names}
    outputs |= {name: sorted((folder / name).glob("part-*")) for name in jobs}
    digests = {name: digest(paths) for name, paths in outputs.items()}
    assert len(set(digests.values())) == 1, f"the contenders wrote different bytes: {digests}"


def until_both_are_there(session: SparkSession) -> None:
    """A session begins with its first executor; what is measured needs both."""
    context = session.sparkContext
    # The driver counts itself.
    while context._jsc.sc().getExecutorMemoryStatus().size() < 3:
        context.parallelize(range(2), 2).count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("records", type=int)
    parser.add_argument("rounds", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(PARTS[arguments.part](Path(folder), arguments.records, arguments.rounds))


if __name__ == "__main__":
    main()

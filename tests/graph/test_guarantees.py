"""What a pipeline promises for each source at each destination, and what it refuses to promise."""

from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import (
    clock,
    delta,
    file,
    generator,
    iceberg,
    journal,
    kafka,
    log,
    memory,
    objects,
    opensearch,
    singer,
    spark,
    sqlite,
    sqlite_queue,
    sqs,
    stdio,
)

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    Processor,
    Record,
    Retry,
    Source,
    State,
    TransactionLimits,
    processor,
)
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.guarantees import Guarantee, committing_destination, guarantees
from conduit_py.sdk import Options, SourceConnector
from conduit_py.testing.fake_destinations import FakeKeyedDestination, FakeStagedDestination, FakeStorage

TOPIC = kafka.Destination(servers="h:1", topic="a")
DOCUMENTS = opensearch.Destination(url="http://h:1", index="a")
QUEUE = "https://sqs.eu-central-1.amazonaws.com/1/q"


@processor(state=True)
def remembering(record: Record, state: State) -> Record:
    return record


def pipeline(**changes: Any) -> Pipeline:
    declared: dict[str, Any] = dict(
        sources=[Source("in", generator.Source(count=1))],
        destinations=[Destination("out", file.Destination(path="out"))],
    )
    return Pipeline("p", **(declared | changes))


def promised(declared: Pipeline) -> list[tuple[str, str, str]]:
    return [(each.source, each.destination, each.promise) for each in guarantees(compile_pipeline(declared))]


def problems_of(declared: Pipeline) -> dict[str, str]:
    with pytest.raises(PipelineInvalid) as caught:
        compile_pipeline(declared)
    assert all(problem.suggestion for problem in caught.value.problems)
    return {problem.path: problem.message for problem in caught.value.problems}


class TestPromises:
    def test_a_member_of_a_group_is_at_least_once_because_others_repeat_what_it_had_committed(self) -> None:
        alone = kafka.Source(servers="127.0.0.1:9", topics=["orders"], partitions=[0])
        member = kafka.Source(servers="127.0.0.1:9", topics=["orders"], group="shop")
        rows = [Destination("rows", sqlite.Destination(path="a.db"))]
        declared = pipeline(
            sources=[Source("alone", alone), Source("member", member)], destinations=rows, delivery="exactly_once"
        )

        assert promised(declared) == [("alone", "rows", "exactly once"), ("member", "rows", "at least once")]

    def test_every_level_has_its_reason(self) -> None:
        declared = pipeline(
            destinations=[
                Destination("keyed", FakeKeyedDestination(storage=FakeStorage())),
                Destination("rows", sqlite.Destination(path="a.db")),
                Destination("more", sqlite.Destination(path="b.db")),
                Destination("lines", file.Destination(path="out")),
            ],
            delivery="exactly_once",
        )
        graph = compile_pipeline(declared)

        assert committing_destination(graph) == "rows"
        assert guarantees(graph)[1] == Guarantee(
            "in", "rows", "exactly once", "in order", "rows commits records and progress in one transaction of its own"
        )
        assert {each.promise for each in guarantees(graph)} == {"exactly once"}
        assert [each.why.split()[1] for each in guarantees(graph)] == ["recognises", "commits", "stages", "stages"]

    def test_other_deliveries_promise_less(self) -> None:
        keyed = [
            Destination("keyed", FakeKeyedDestination(storage=FakeStorage())),
            Destination("log", log.Destination()),
        ]

        assert promised(pipeline(destinations=keyed)) == [
            ("in", "keyed", "effectively once"),
            ("in", "log", "at least once"),
        ]
        assert promised(pipeline(delivery="at_most_once", dead_letters=DeadLetters("drop"))) == [
            ("in", "out", "at most once")
        ]

    def test_a_source_that_cannot_resume_gets_no_promise(self) -> None:
        assert promised(pipeline(sources=[Source("in", stdio.Source())])) == [("in", "out", "best effort")]

    def test_only_pairs_that_are_joined_are_named(self) -> None:
        declared = pipeline(
            sources=[Source("a", generator.Source(count=1)), Source("b", generator.Source(count=1))],
            destinations=[
                Destination("x", file.Destination(path="x"), after="a"),
                Destination("y", file.Destination(path="y"), after=["a", "b"]),
            ],
        )

        assert [(source, at) for source, at, _ in promised(declared)] == [("a", "x"), ("a", "y"), ("b", "y")]


class TestOrder:
    @pytest.mark.parametrize(
        ("source", "destination", "order"),
        [
            (file.Source(path="in"), file.Destination(path="out"), "in order"),
            (kafka.Source(servers="h:1", topics=["a"]), file.Destination(path="out"), "in order for each partition"),
            (kafka.Source(servers="h:1", topics=["a"], partitions=[0]), file.Destination(path="out"), "in order"),
            (file.Source(path="in"), TOPIC, "in order for each partition"),
            (kafka.Source(servers="h:1", topics=["a"]), TOPIC, "in order for each partition"),
            (file.Source(path="in"), DOCUMENTS, "in order for each key"),
            (kafka.Source(servers="h:1", topics=["a"]), DOCUMENTS, "in order for each partition and key"),
            (file.Source(path="in"), sqs.Destination(url=QUEUE), "in no order"),
            (file.Source(path="in"), sqs.Destination(url=f"{QUEUE}.fifo"), "in order for each message group"),
            (
                sqlite_queue.Source(path="q.db", messages="uri", allowed_prefixes=["/in"]),
                file.Destination(path="o"),
                "in order for each object",
            ),
            (sqlite_queue.Source(path="q.db", messages="record"), file.Destination(path="o"), "in no order"),
            (file.Source(path="in"), spark.Sink(format="csv"), "in no order"),
            (generator.Source(count=1), objects.Destination(url="o", format="json"), "in order"),
            (
                generator.Source(count=1),
                objects.Destination(url="o", partition_by=["n"]),
                "in order for each partition",
            ),
        ],
        ids=lambda value: (
            value if isinstance(value, str) else type(value).__module__.removeprefix("conduit_connectors.")
        ),
    )
    def test_both_ends_say_what_is_in_order(self, source: Any, destination: Any, order: str) -> None:
        declared = pipeline(sources=[Source("in", source)], destinations=[Destination("out", destination)])

        assert [each.order for each in guarantees(compile_pipeline(declared))] == [order]

    def test_a_target_of_the_outbox_has_its_own(self) -> None:
        declared = pipeline(
            delivery="exactly_once", outbox={"told": TOPIC, "kept": journal.Destination(path="journal")}
        )

        found = {each.destination: each.order for each in guarantees(compile_pipeline(declared))}
        assert found == {"out": "in order", "told": "in order for each partition", "kept": "in order"}


class TestRefusals:
    def test_everything_that_would_break_the_promise_is_named_at_once(self) -> None:
        declared = pipeline(
            sources=[Source("in", stdio.Source())],
            destinations=[
                Destination("list", memory.Destination(into=[])),
                Destination("out", file.Destination(path="out"), retry=Retry(attempts=3)),
            ],
            dead_letters=DeadLetters(print),
            delivery="exactly_once",
        )

        assert problems_of(declared) == {
            "sources.in": "stdio cannot resume from a position, which exactly_once requires",
            "destinations.list": "memory would write records again after a crash, which exactly_once does not allow",
            "destinations.out.retry": "a write that fails ends the transaction, which is retried as a whole",
            "dead_letters.handler": "a function may be given a letter again after a crash, "
            "which exactly_once does not allow",
        }

    def test_letters_to_a_plain_destination(self) -> None:
        declared = pipeline(dead_letters=DeadLetters(log.Destination()), delivery="exactly_once")

        assert list(problems_of(declared)) == ["dead_letters.handler"]

    @pytest.mark.parametrize("handler", ["stop", "drop", "journal", FakeStagedDestination(storage=FakeStorage())])
    def test_letters_that_are_kept_once(self, handler: Any) -> None:
        assert promised(pipeline(dead_letters=DeadLetters(handler), delivery="exactly_once"))

    def test_state_without_a_transaction_to_keep_it_in(self) -> None:
        sources = [Source("in", generator.Source(count=1), processors=[remembering])]

        [(path, message)] = problems_of(pipeline(sources=sources)).items()
        assert path == "sources.in.processors.remembering"
        assert message == "keeps state, which is correct after a crash only if it commits with the records"

    def test_state_that_several_workers_would_change(self) -> None:
        declared = pipeline(processors=[Processor("sum", remembering, workers=4)], delivery="exactly_once")

        assert problems_of(declared) == {
            "processors.sum.workers": "keeps state, which 4 workers would change in an arbitrary order"
        }

    def test_the_size_of_transactions_that_there_are_not(self) -> None:
        assert problems_of(pipeline(transaction=TransactionLimits(max_records=5))) == {
            "transaction": "applies only to an exactly-once pipeline"
        }

    def test_a_minimum_above_the_maximum(self) -> None:
        with pytest.raises(ValueError, match="min_seconds must not be above max_seconds"):
            TransactionLimits(min_seconds=2)

    def test_a_function_with_state_takes_two_arguments(self) -> None:
        @processor(state=True)
        def one(record: Record) -> Record:
            return record

        declared = pipeline(processors=[one], delivery="exactly_once")
        assert "a record and a state" in problems_of(declared)["processors.one"]


def test_a_source_that_reads_in_another_order_each_time_is_refused_for_a_destination_by_delivery_key() -> None:
    mixing = Source("in", kafka.Source(servers="h:1", topics=["a", "b"]))
    single = Source("in", kafka.Source(servers="h:1", topics=["a"], partitions=[0]))
    keyed = [Destination("keyed", FakeKeyedDestination(storage=FakeStorage()))]

    assert problems_of(pipeline(sources=[mixing], destinations=keyed, delivery="exactly_once")) == {
        "destinations.keyed": "recognises repeated records by positions, which differ each time that in reads them"
    }
    assert promised(pipeline(sources=[mixing], destinations=keyed)) == [("in", "keyed", "at least once")]
    assert promised(pipeline(sources=[single], destinations=keyed)) == [("in", "keyed", "effectively once")]
    assert promised(pipeline(sources=[mixing], delivery="exactly_once")) == [("in", "out", "exactly once")]


@pytest.mark.parametrize(
    ("source", "helps"),
    [
        (kafka.Source(servers="h:1", topics=["a", "b"]), "let it read a single partition"),
        (objects.Source(url="in/*.csv", after="delete"), 'let it read with on_replaced="new-only" and after="keep"'),
        (singer.Source(command=["tap"]), "write its records to a journal first"),
        (clock.Source(), "write its records to a journal first"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__module__,
)
def test_the_advice_for_such_a_source_is_one_that_the_source_can_follow(
    source: SourceConnector[Options], helps: str
) -> None:
    keyed = [Destination("keyed", FakeKeyedDestination(storage=FakeStorage()))]
    with pytest.raises(PipelineInvalid) as caught:
        compile_pipeline(pipeline(sources=[Source("in", source)], destinations=keyed, delivery="exactly_once"))
    [suggestion] = [each.suggestion or "" for each in caught.value.problems if each.path == "destinations.keyed"]

    assert suggestion.startswith(helps)
    assert suggestion.endswith(", or use a destination that is transactional or staged")


def test_following_the_advice_solves_the_problem(tmp_path: Path) -> None:
    keyed = [Destination("keyed", FakeKeyedDestination(storage=FakeStorage()))]
    followed = [
        kafka.Source(servers="h:1", topics=["a"], partitions=[0]),
        objects.Source(url="in/*.csv", on_replaced="new-only", after="keep"),
        journal.Source(path=str(tmp_path)),
    ]

    for source in followed:
        compile_pipeline(pipeline(sources=[Source("in", source)], destinations=keyed, delivery="exactly_once"))


class TestClaims:
    """Two staged destinations of a pipeline on one table have one identity there, and would lose records."""

    @staticmethod
    def claim_problems(*connectors: Any, **changes: Any) -> dict[str, str]:
        destinations = [Destination(f"out{number}", each) for number, each in enumerate(connectors)]
        declared = pipeline(destinations=destinations, **({"delivery": "exactly_once"} | changes))
        try:
            compile_pipeline(declared)
        except PipelineInvalid as invalid:
            return {each.path: f"{each.message}; {each.suggestion}" for each in invalid.problems}
        return {}

    def test_two_destinations_of_one_delta_table_are_a_problem(self, tmp_path: Path) -> None:
        one, same = delta.Destination(path=str(tmp_path / "t")), delta.Destination(path=f"file://{tmp_path}/x/../t/")
        other = delta.Destination(path=str(tmp_path / "u"))

        assert self.claim_problems(one, same) == {
            "destinations.out1": f"claims the Delta table {tmp_path}/t, as out0 does: each would take what the other "
            "writes for its own, and records would be lost; let one destination write there, with the inputs of both "
            "in `after`, or give each its own"
        }
        assert self.claim_problems(one, other) == {}
        assert self.claim_problems(one, same, delivery="at_least_once") == {}

    def test_dead_letters_in_the_table_of_a_destination_are_a_problem(self, tmp_path: Path) -> None:
        one, same = (delta.Destination(path=str(tmp_path / "t")) for _ in range(2))

        assert list(self.claim_problems(one, dead_letters=DeadLetters(same))) == ["dead_letters.handler"]

    def test_two_destinations_of_one_file_or_spark_folder_are_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path)
        pairs: list[tuple[Any, Any]] = [
            (file.Destination(path=tmp_path / "a"), file.Destination(path=tmp_path / "link" / "a")),
            (spark.Destination(path=str(tmp_path / "a")), spark.Destination(path=f"file://{tmp_path}/link/a")),
            (
                spark.Jdbc(url="jdbc:postgresql://h/d?password=hush", table="t"),
                spark.Jdbc(url="jdbc:postgresql://u:hush@h/d", table="t"),
            ),
        ]
        for one, same in pairs:
            problems = self.claim_problems(one, same)
            assert list(problems) == ["destinations.out1"]
            assert "hush" not in str(problems)
        nowhere = [file.Destination(path="/dev/null") for _ in range(2)]
        assert self.claim_problems(*nowhere) == {}

    def test_tables_of_two_object_stores_are_two(self) -> None:
        one, same, other = (
            delta.Destination(path=path, storage={"AWS_ENDPOINT_URL": f"http://me:hush@{host}:9000"})
            for path, host in (("s3://b/t", "one"), ("s3a://b//t/", "one"), ("s3://b/t", "other"))
        )

        [(path, problem)] = self.claim_problems(one, same).items()
        assert path == "destinations.out1"
        assert "claims the Delta table s3://b/t at one:9000, as" in problem
        assert self.claim_problems(one, other) == {}

    @pytest.mark.parametrize(
        ("change", "is_same"),
        [
            ({}, True),
            ({"uri": "http://you@here/"}, True),
            ({"name": "mine"}, True),
            ({"uri": "http://there"}, False),
            ({"warehouse": "w"}, False),
        ],
    )
    def test_two_destinations_of_one_iceberg_table_are_a_problem(self, change: dict[str, str], is_same: bool) -> None:
        catalog = {"type": "rest", "uri": "http://me:hush@here"}
        one = iceberg.Destination(table="db.t", catalog=catalog)

        problems = self.claim_problems(one, iceberg.Destination(table="db.t", catalog=catalog | change))
        assert list(problems) == (["destinations.out1"] if is_same else [])
        assert "hush" not in str(problems)
        assert self.claim_problems(one, iceberg.Destination(table="db.u", catalog=catalog | change)) == {}

    def test_catalogs_of_one_database_differ_by_name(self, tmp_path: Path) -> None:
        uri, folder = f"sqlite:///{tmp_path}/catalog.db", f"{tmp_path}/x/.."
        one, same, other = (
            iceberg.Destination(table="db.t", catalog={"type": "sql"} | more)
            for more in (
                {"uri": uri},
                {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": "file:///lake"},
                {"uri": uri, "name": "other"},
            )
        )

        assert list(self.claim_problems(one, same)) == ["destinations.out1"]
        assert self.claim_problems(one, other) == {}

"""`connectors/README.md` is true: its example passes the acceptance suite, and it names every option."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import (
    clock,
    delta,
    duckdb,
    file,
    generator,
    http,
    iceberg,
    journal,
    kafka,
    log,
    memory,
    mqtt,
    mysql,
    nats,
    objects,
    opensearch,
    parquet,
    postgres,
    postgres_polling,
    rabbitmq,
    redis_streams,
    spark,
    sqlalchemy,
    sqlite_queue,
    sqs,
    stdio,
    webhook,
    websocket,
)

README = (Path(__file__).parents[2] / "connectors" / "README.md").read_text()


def test_the_connector_of_the_example_passes_the_acceptance_suite(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    (tmp_path / "test_example.py").write_text(code)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert re.search(r"\b1\d passed\b", run.stdout)


@pytest.mark.parametrize(
    "connector",
    [
        clock.Source,
        delta.Source,
        delta.Destination,
        duckdb.Source,
        duckdb.Destination,
        file.Source,
        file.Destination,
        generator.Source,
        iceberg.Source,
        iceberg.Destination,
        http.Source,
        http.Destination,
        webhook.Source,
        websocket.Source,
        journal.Source,
        journal.Destination,
        kafka.Source,
        kafka.Destination,
        mysql.Source,
        postgres.Source,
        postgres_polling.Source,
        stdio.Source,
        stdio.Destination,
        log.Destination,
        memory.Source,
        memory.Destination,
        objects.Source,
        objects.Destination,
        opensearch.Destination,
        parquet.Source,
        parquet.Destination,
        spark.Source,
        spark.Destination,
        spark.Jdbc,
        spark.Sink,
        sqlite_queue.Source,
        sqlite_queue.Destination,
        sqlalchemy.Source,
        sqlalchemy.Destination,
        sqs.Source,
        sqs.Destination,
        redis_streams.Source,
        redis_streams.Destination,
        nats.Source,
        nats.Destination,
        mqtt.Source,
        mqtt.Destination,
        rabbitmq.Source,
        rabbitmq.Destination,
    ],
)
def test_every_option_is_named(connector: Any) -> None:
    name = f"{connector.__module__.split('.')[1]}.{connector.__name__}"
    section = README[README.index(name) :].split("\n### ")[0]

    assert [option for option in connector.options_model.model_fields if f"`{option}`" not in section] == []

"""A YARN that is not configured or does not answer is reported before Spark waits for it. None is needed for that."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import run_warm
from warm_workers import DRIVER_MODULES

from conduit_py.errors import TransientError
from conduit_py.spark.session.cluster import Submission, require_manager
from conduit_py.testing.server_process import free_port

OPEN = """
from conduit_connectors.spark import Sink
try:
    Sink(format="noop", master="yarn").fresh().open()
except Exception as error:
    print(type(error).__name__, error, error.suggestion)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of settings that Spark is led to."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    return tmp_path / "yarn-site.xml"


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def settings(**values: str) -> str:
    """Names are those after `yarn.resourcemanager.`, with `_` for dots."""
    properties = (
        f"<property><name> yarn.resourcemanager.{name.replace('_', '.')}</name>\n<value>{value} </value></property>"
        for name, value in values.items()
    )
    return f"<configuration>{''.join(properties)}</configuration>"


def test_without_its_settings_it_says_which_to_give() -> None:
    unset = {name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}

    ran = run_warm([sys.executable, "-c", OPEN], env=unset, preloaded=DRIVER_MODULES)

    assert ran.stdout == (
        "FatalError Spark cannot find YARN: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set "
        "set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and yarn-site.xml\n"
    )


def test_a_manager_that_does_not_answer_is_named(site: Path) -> None:
    port = free_port()
    site.write_text(settings(hostname="127.0.0.1", address=f"${{yarn.resourcemanager.hostname}}:{port}"))

    with pytest.raises(TransientError) as caught:
        require_manager({})

    assert caught.value.message == (f"no ResourceManager of YARN answers (127.0.0.1:{port}: Connection refused)")


def test_one_of_several_managers_is_enough(site: Path, listening: int) -> None:
    answers = {"address_two": f"127.0.0.1:{listening}"}
    both = {"ha_enabled": "true", "ha_rm-ids": "one, two", "address_one": f"127.0.0.1:{free_port()}"}

    site.write_text(settings(**both, **answers))
    require_manager({})

    site.write_text(settings(**both, address_two=f"127.0.0.1:{free_port()}"))
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:\d+: Connection refused; 127\.0\.0\.1:\d+: Connection"):
        require_manager({})


def test_what_spark_is_given_comes_before_the_file(site: Path, listening: int) -> None:
    site.write_text(settings(address=f"127.0.0.1:{free_port()}"))

    require_manager({"spark.hadoop.yarn.resourcemanager.address": f"127.0.0.1:{listening}"})


@pytest.mark.parametrize(
    "text",
    [
        settings(),
        settings(address="${env.MANAGER}:8032"),
        settings(ha_enabled="true", ha_rm_ids="a"),
        "<configuration>",
    ],
    ids=["nothing said", "said elsewhere", "no name of several", "not XML"],
)
def test_what_is_not_plainly_said_is_left_to_spark(site: Path, text: str) -> None:
    site.write_text(text)

    require_manager({})


def test_tags_of_the_user_are_kept() -> None:
    submission = Submission(1)

    assert submission.tags("theirs,others") == f"theirs,others,{submission.tags(None)}"

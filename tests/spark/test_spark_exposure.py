"""What others on the machine or its network can see of a local Spark: no open port, and no setting."""

import json
import os
import sys
from typing import Any

from warm_python import run_warm
from warm_workers import DRIVER_MODULES

LOOK = """
import json, os, socket, struct, sys
from pathlib import Path
from conduit_py.spark.session.options import SparkOptions
from conduit_py.spark.session.shared_session import shared

session = shared.acquire(SparkOptions(master=sys.argv[1], conf=json.loads(sys.argv[2])))
from pyspark import SparkContext

def listeners(pid):
    inodes = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if os.path.islink(fd)}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        table = Path(f"/proc/{pid}/net/{name}")
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                raw = bytes.fromhex(local.split(":")[0])
                words = [raw[at:at + 4][::-1] for at in range(0, len(raw), 4)]
                yield socket.inet_ntop(family, b"".join(words))

java = SparkContext._gateway.proc.pid
print(json.dumps({
    "rows": session.range(10).rdd.map(lambda row: row.id).sum(),
    "listeners": sorted(set(listeners(java))),
    "command": Path(f"/proc/{java}/cmdline").read_text(),
    "environment": Path(f"/proc/{java}/environ").read_text(),
    "conf": dict(session.sparkContext.getConf().getAll()),
}))
shared.release()
"""


def look(master: str, **conf: str) -> dict[str, Any]:
    command = [sys.executable, "-c", LOOK, master, json.dumps(conf)]
    # The Python of its workers is ours, without a word of the user.
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    ran = run_warm(command, env=environment, timeout=600, preloaded=DRIVER_MODULES)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_local_spark_listens_on_loopback_and_asks_for_a_secret() -> None:
    found = look("local[2]")

    assert found["rows"] == 45
    assert found["listeners"]
    assert set(found["listeners"]) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert found["conf"]["spark.authenticate"] == "true"


def test_a_setting_is_on_no_command_line_and_in_no_environment() -> None:
    secret = 'a "secret" = \\ of mine: #é!'
    found = look("local[1]", **{"spark.hadoop.fs.s3a.secret.key": secret, "spark.x": "  spaces  "})

    assert found["conf"]["spark.hadoop.fs.s3a.secret.key"] == secret
    assert found["conf"]["spark.x"] == "  spaces  "
    shown = f"{found['command']} {found['environment']}"
    assert "of mine" not in shown
    assert str(found["conf"]["spark.authenticate.secret"]) not in shown


def test_what_the_user_sets_is_kept() -> None:
    found = look("local[1]", **{"spark.driver.host": "localhost", "spark.authenticate": "false"})

    assert found["conf"]["spark.driver.host"] == "localhost"
    assert found["conf"]["spark.authenticate"] == "false"

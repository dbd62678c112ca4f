"""The manifests for Kubernetes have the form that Kubernetes asks for, and fit together, to Spark and to a run."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from local_kubernetes import LocalKubernetes
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

from conduit_py.spark.session.java import exposures, site_conf

FILE = Path(__file__).parents[2] / "examples" / "kubernetes" / "spark.yaml"
COUNT = 1000
PIPELINE = """
import os, signal
from pathlib import Path
from conduit_connectors import file, objects
from conduit_py import Destination, Pipeline, Record, Source, processor

HERE = Path(__file__).parent

@processor
def killed_once(record: Record) -> Record:
    if record.payload["n"] == 800 and not (HERE / "killed").exists():
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        assert b"KubernetesExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
        (HERE / "killed").touch()
        os.kill(executor, signal.SIGKILL)
    record.payload.after = {"n": record.payload["n"]}
    return record

pipeline = Pipeline(
    "orders",
    sources=[Source("in", file.Source(path=HERE / "in.jsonl", format="json"))],
    processors=[killed_once],
    destinations=[Destination("out", objects.Destination(url=str(HERE / "out")))],
    delivery="exactly_once",
)
"""
HERE_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.executor.memory": "512m",
    # Requests for lists, and no connections that stay open.
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.apiPollingInterval": "1s",
}
"""What is different on one machine."""


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """By kind: there is one of each."""
    found = list(yaml.safe_load_all(FILE.read_text()))
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def test_every_manifest_is_valid(manifests: dict[str, Any]) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_what_a_manifest_names_is_in_another(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}

    assert {each["name"] for each in container["volumeMounts"]} == set(volumes)
    assert volumes["spark"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    claim = manifests["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim
    assert pod["spec"]["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"]
    assert manifests["RoleBinding"]["roleRef"]["name"] == manifests["Role"]["metadata"]["name"]
    assert manifests["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]


def test_spark_is_reached_where_the_manifests_let_it(
    manifests: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in manifests["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    conf = site_conf()
    ports = {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]}

    assert {str(each["port"]) for each in manifests["Service"]["spec"]["ports"]} == ports
    [rule] = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert {str(each["port"]) for each in rule["ports"]} == ports
    [(label, value)] = rule["from"][0]["podSelector"]["matchLabels"].items()
    assert conf[f"spark.kubernetes.executor.label.{label}"] == value
    assert conf["spark.driver.host"].startswith(f"{manifests['Service']['metadata']['name']}.")
    # Authenticated and encrypted, without a word about it.
    assert exposures("k8s://https://kubernetes.default.svc", {}) == []


def test_executors_run_in_the_pods_that_spark_asks_for_with_the_rights_of_the_manifests(
    manifests: dict[str, Any], tmp_path: Path
) -> None:
    """The command of the Deployment with its settings. The process of a pod is killed, and nothing is lost."""
    conf = tmp_path / "conf"
    conf.mkdir()
    given = manifests["ConfigMap"]["data"]["spark-defaults.conf"]
    (conf / "spark-defaults.conf").write_text(given + "".join(f"{name} {value}\n" for name, value in HERE_CONF.items()))
    (tmp_path / "orders.py").write_text(PIPELINE)
    rows = ({"n": n, "long": "x" * 9000} for n in range(COUNT))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    with LocalKubernetes(tmp_path / "pods", manifests["Role"]) as kubernetes:
        places: dict[str, str | Path] = {
            "conduit-py": COMMAND,
            "/app/orders.py": tmp_path / "orders.py",
            "k8s://https://kubernetes.default.svc": f"k8s://{kubernetes.url}",
            "/state": tmp_path / "state",
        }
        command = [places.get(each, each) for each in container["command"]]
        variables = {"SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": sys.executable}
        ran = run_warm(command, env=os.environ | variables, preloaded=DRIVER_MODULES, timeout=600)
        left = kubernetes.pods

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "killed").exists()
    files = sorted((tmp_path / "out").glob("part-*"))
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert [row["n"] for row in found] == list(range(COUNT))
    assert len(files) == 2
    assert list((tmp_path / "out").glob("_conduit/*/*")) == []
    assert (kubernetes.refused, left) == ([], [])
    pods = [each for each in kubernetes.posted if each["kind"] == "Pod"]
    assert len(pods) > 1
    for manifest in kubernetes.posted:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    for pod in pods:
        [executor] = pod["spec"]["containers"]
        assert executor["image"] == container["image"]
        assert pod["metadata"]["labels"]["executor-of"] == "orders"
        # Who asks for its pods has the secret; nobody else does.
        assert "_SPARK_AUTH_SECRET" in [each["name"] for each in executor["env"]]

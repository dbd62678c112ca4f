"""The manifests for Kubernetes have the form that Kubernetes asks for, and fit together and to Spark."""

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from conduit_py.spark.session.java import exposures, site_conf

FILE = Path(__file__).parents[2] / "examples" / "kubernetes" / "spark.yaml"


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

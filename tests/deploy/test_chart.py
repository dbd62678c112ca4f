"""The Helm chart: what it renders is valid, may little, and calls the server with options that it has.

`python tests/deploy/test_chart.py` writes the rendered files again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from conduit_py import __version__
from conduit_py.cli.main import app
from conduit_py.config.python_file import load_pipelines
from conduit_py.graph.compile import compile_pipeline

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "conduit-server"
RENDERED = Path(__file__).parent / "rendered"
PAGE = ROOT / "docs" / "operate" / "kubernetes.md"
WAYS: dict[str, list[str]] = {
    "volume": [],
    "postgres": [
        "state.kind=postgres",
        "state.postgres.address=postgresql://conduit@db.example/conduit",
        "state.postgres.passwordSecret.name=conduit-db",
        "replicas=2",
        "processes=2",
        "podMonitor.enabled=true",
    ],
}
WITH_EXAMPLE = "postgres"
"""The way that is rendered with the example of `values.yaml`; the others have no pipelines, as by default."""
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or ""
"""Of the package helm-binary, which the group `test` installs on Linux; elsewhere the one on the path."""
needs_helm = pytest.mark.skipif(not HELM, reason="helm-binary is not made for this machine")


def render(settings: list[str], values: str = "") -> "subprocess.CompletedProcess[str]":
    sets = [word for each in settings for word in ("--set", each)]
    command = [HELM, "template", "shop", str(CHART), "--namespace", "data", "--kube-version", "1.31.0", *sets]
    return subprocess.run([*command, "--values", "-"], input=values, capture_output=True, text=True, timeout=300)


def render_way(way: str) -> "subprocess.CompletedProcess[str]":
    return render(WAYS[way], example_values() if way == WITH_EXAMPLE else "")


def example_values() -> str:
    """The example in the comment of `values.yaml`."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    example = takewhile(lambda line: line.startswith("#"), lines[lines.index("# pipelines:") :])
    return "".join(f"{line[2:]}\n" for line in example)


def objects(way: str) -> dict[str, Any]:
    """What is rendered, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((RENDERED / f"{way}.yaml").read_text()) if each}


def workload(way: str) -> dict[str, Any]:
    found = objects(way)
    return found.get("StatefulSet") or found["Deployment"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_rendered_is_valid(way: str) -> None:
    for kind, each in objects(way).items():
        # The schemas have no custom resources: what matters of that one is below.
        if kind != "PodMonitor":
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


@needs_helm
def test_the_linter_of_helm_finds_nothing() -> None:
    linted = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=300)

    assert linted.returncode == 0, linted.stdout + linted.stderr


@needs_helm
@pytest.mark.parametrize("way", WAYS)
def test_the_rendered_files_are_those_of_the_chart(way: str) -> None:
    rendered = render_way(way)

    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout == (RENDERED / f"{way}.yaml").read_text()


@needs_helm
@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (["replicas=2"], "a state on a volume has one server"),
        (["state.kind=postgres"], "give state.postgres.address"),
        (["state.kind=postgres", "state.postgres.address=postgresql://me:secret@db/x"], "state.postgres.address"),
        (["stateKind=postgres"], "stateKind"),
        (["pipelines.x\\.sh=rm"], "x.sh is no name of a pipeline file"),
    ],
)
def test_values_that_cannot_work_are_refused_with_what_to_do(settings: list[str], refusal: str) -> None:
    rendered = render(settings)

    assert rendered.returncode != 0
    # Some versions of Helm write the path of a value with slashes.
    assert refusal in rendered.stderr.replace("/", ".")


@needs_helm
def test_the_page_installs_the_chart_and_names_what_it_makes() -> None:
    page = PAGE.read_text()
    [values] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [line] = re.findall(r"^helm install (.*) --values values\.yaml$", page, re.MULTILINE)
    command = [HELM, "template", *shlex.split(line), "--kube-version", "1.31.0", "--values", "-"]
    rendered = subprocess.run(command, input=values, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert rendered.returncode == 0, rendered.stderr
    made = {each["kind"]: each for each in yaml.safe_load_all(rendered.stdout) if each}
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    [server] = pod["containers"]
    [state] = [each.removeprefix("--state=") for each in server["args"] if each.startswith("--state=")]
    wanted = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    wanted.add(made["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"]["name"])
    name = made["StatefulSet"]["metadata"]["name"]

    kubernetes_validate.validate(made["StatefulSet"], kubernetes_validate.latest_version(), strict=True)
    assert wanted == set(re.findall(r"kubectl create secret generic (\S+)", page))
    assert server["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "shop-db"
    assert server["image"] == "registry.example/conduit-py:0.1.0"
    port = made["Service"]["spec"]["ports"][0]["port"]
    assert f"kubectl port-forward service/{made['Service']['metadata']['name']} {port}\n" in page
    assert f"kubectl exec {name}-0 -c {server['name']} -- " in page
    assert f" --state {state}\n" in page


def test_nobody_deploys_a_pipeline_that_is_not_their_own() -> None:
    """Helm adds the files of a user to those of the chart, so the chart has none."""
    mounted = workload("volume")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]

    assert yaml.safe_load((CHART / "values.yaml").read_text())["pipelines"] == {}
    assert "ConfigMap" not in objects("volume")
    assert [each for each in mounted if each["name"] == "pipelines"] == []


def test_the_example_is_a_pipeline_and_is_mounted_where_the_server_reads(tmp_path: Path) -> None:
    files = yaml.safe_load(example_values())["pipelines"]
    [server] = workload(WITH_EXAMPLE)["spec"]["template"]["spec"]["containers"]
    _, bound, _ = app.parse_args(server["args"], exit_on_error=False, print_error=False)
    [(name, text)] = files.items()
    (tmp_path / name).write_text(text)
    [pipeline] = load_pipelines(tmp_path / name)

    assert compile_pipeline(pipeline).pipeline.id == "orders"
    assert objects(WITH_EXAMPLE)["ConfigMap"]["data"] == files
    assert [each["mountPath"] for each in server["volumeMounts"] if each["name"] == "pipelines"] == [
        f"{bound.arguments['pipelines']}/{name}"
    ]


def test_a_state_has_one_server_or_a_database() -> None:
    volume, postgres = workload("volume"), workload("postgres")

    assert (volume["kind"], volume["spec"]["replicas"]) == ("StatefulSet", 1)
    assert volume["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "state"
    # With the database, the new server waits beside the old one until that has ended.
    assert (postgres["kind"], postgres["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]) == ("Deployment", 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_server_is_called_with_options_that_it_has(way: str) -> None:
    [server] = workload(way)["spec"]["template"]["spec"]["containers"]
    command, bound, _ = app.parse_args(server["args"], exit_on_error=False, print_error=False)

    assert command.__name__ == "serve"
    assert bound.arguments["host"] == "0.0.0.0"
    assert "shop-conduit-server.data.svc" in bound.arguments["allow_host"]


@pytest.mark.parametrize("way", WAYS)
def test_a_container_may_write_to_its_volumes_and_nothing_else(way: str) -> None:
    pod = workload(way)["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_has_the_time_that_it_needs(way: str) -> None:
    pod = workload(way)["spec"]["template"]["spec"]
    [server] = pod["containers"]
    _, bound, _ = app.parse_args(server["args"], exit_on_error=False, print_error=False)

    assert pod["terminationGracePeriodSeconds"] > bound.arguments["stop_timeout"]
    assert {server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")} == {"/healthz"}
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_secrets_are_in_no_argument_and_no_map() -> None:
    pod = workload("postgres")["spec"]["template"]["spec"]
    [server] = pod["containers"]

    assert server["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "conduit-db", "key": "password"}
    assert "--token-file=/run/conduit/tokens" in server["args"]
    monitor = objects("postgres")["PodMonitor"]["spec"]["podMetricsEndpoints"][0]
    assert monitor["authorization"]["credentials"] == {"name": "conduit-py-metrics-token", "key": "token"}
    assert monitor["port"] == server["ports"][0]["name"]


def test_a_node_can_be_drained() -> None:
    for way in WAYS:
        assert objects(way)["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_chart_is_that_of_the_version_and_its_values_keep_to_its_schema() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert chart["version"] == chart["appVersion"] == __version__
    assert set(values) == set(schema["properties"]) - {"global"}


def write_rendered() -> None:
    """Write the rendered files again."""
    for way in WAYS:
        rendered = render_way(way)
        assert rendered.returncode == 0, rendered.stderr
        (RENDERED / f"{way}.yaml").write_text(rendered.stdout)


if __name__ == "__main__":
    write_rendered()

"""The container file and the compose file. No engine runs in the tests: they are parsed, linted and compared."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from conduit_py.cli.main import app

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose"
PAGE = ROOT / "docs" / "operate" / "containers.md"


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, with lines that continue joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = []
        found[name].append((instruction, rest.strip()))
    return found


def values(stage: str, instruction: str) -> list[str]:
    return [rest for name, rest in stages()[stage] if name == instruction]


def test_the_container_file_passes_the_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([str(hadolint), str(DOCKERFILE)], capture_output=True, text=True, timeout=300)

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_server_without_spark_is_built_by_default() -> None:
    assert list(stages()) == ["", "build", "spark", "server"]
    assert values("server", "FROM") == ["gcr.io/distroless/python3-debian12:nonroot AS server"]


@pytest.mark.parametrize("stage", ["server", "spark"])
def test_an_image_runs_as_a_user_of_its_own_and_is_watched(stage: str) -> None:
    [user], [entry], [command], [health] = (
        values(stage, name) for name in ("USER", "ENTRYPOINT", "CMD", "HEALTHCHECK")
    )
    called, bound, _ = app.parse_args(json.loads(command), exit_on_error=False, print_error=False)

    assert user == "65532:65532"  # by number: Kubernetes cannot tell that a name is not root
    assert json.loads(entry)[1:] == ["-m", "conduit_py.cli.main"]
    assert called.__name__ == "serve"
    assert bound.arguments["state"] == "/state"
    assert values(stage, "VOLUME") == ["/state"]
    assert "/healthz" in health
    assert f"{json.loads(entry)[0]}" in health
    assert values(stage, "STOPSIGNAL") == ["SIGTERM"]


def test_the_health_check_is_python_that_compiles() -> None:
    [health] = values("server", "HEALTHCHECK")
    command = json.loads(health[health.index("[") :])

    compile(command[-1], "healthcheck", "exec")


def test_what_is_installed_is_what_is_locked() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [uv] = [each["version"] for each in lock["package"] if each["name"] == "uv"]
    default = re.search(r'^ARG EXTRAS="(.*)"', DOCKERFILE.read_text(), re.MULTILINE)

    assert f"uv=={uv}" in DOCKERFILE.read_text()
    assert "--require-hashes" in DOCKERFILE.read_text()
    assert default is not None
    assert set(default[1].split()) <= set(project["optional-dependencies"])


def test_everything_that_is_copied_is_sent_to_the_engine() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = {word for rest in values("build", "COPY") for word in rest.split()[:-1]}

    assert ignored[1] == "*"
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_the_page_builds_and_runs_what_the_file_has() -> None:
    page = PAGE.read_text().replace("\\\n", " ")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    parser = argparse.ArgumentParser()
    parser.add_argument("context", type=ROOT.joinpath)
    parser.add_argument("--target", choices=stages(), default="server")
    for option in ("-f", "-t", "--build-arg"):
        parser.add_argument(option)
    builds = [parser.parse_args(shlex.split(line)) for line in re.findall(r"^docker build (.*)$", page, re.MULTILINE)]
    [pipelines, state] = re.findall(r"docker run .* -v \S+:(/\w+):ro\S* -v \S+:(/\w+) ", page)[0]
    _, bound, _ = app.parse_args(json.loads(values("server", "CMD")[0]), exit_on_error=False, print_error=False)

    assert [build.target for build in builds] == ["server", "spark"]
    for build in builds:
        name, _, value = build.build_arg.partition("=")
        assert (build.context / build.f) == DOCKERFILE
        assert name in values("build", "ARG")
        assert set(value.split()) <= set(extras)
    assert (str(bound.arguments["pipelines"]), bound.arguments["state"]) == (pipelines, state)
    assert f"docker compose -f {(COMPOSE / 'compose.yaml').relative_to(ROOT)} up\n" in page


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


def test_every_service_listens_here_only_and_may_little() -> None:
    for name, service in compose()["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert ":" in service["image"] or "build" in service, name


def test_every_file_that_is_mounted_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), source
                assert volume.endswith(":ro"), source
            else:
                assert source in compose()["volumes"]


def test_the_server_has_time_to_stop_and_a_name_that_prometheus_may_use() -> None:
    server = compose()["services"]["conduit"]
    _, bound, _ = app.parse_args(server["command"], exit_on_error=False, print_error=False)
    prometheus = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    [job] = prometheus["scrape_configs"]
    [[target]] = [each["targets"] for each in job["static_configs"]]

    assert server["read_only"]
    assert int(server["stop_grace_period"].removesuffix("s")) > 30
    assert target.partition(":")[0] in bound.arguments["allow_host"]
    assert prometheus["rule_files"] == [
        volume.split(":")[1] for volume in compose()["services"]["prometheus"]["volumes"] if "alerts" in volume
    ]


def test_grafana_gets_the_dashboards_and_the_data_source() -> None:
    provider = yaml.safe_load((COMPOSE / "grafana" / "dashboards" / "conduit-py.yml").read_text())["providers"][0]
    source = yaml.safe_load((COMPOSE / "grafana" / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    mounts = compose()["services"]["grafana"]["volumes"]

    assert f"../../dashboards:{provider['options']['path']}:ro" in mounts
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"]


def test_the_pipelines_of_the_compose_file_are_valid() -> None:
    command = [sys.executable, "-m", "conduit_py.cli.main", "check", str(COMPOSE / "pipelines" / "orders.py")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert checked.returncode == 0, checked.stdout + checked.stderr

"""The tools for assistants: they answer as the commands do, and do no more than they are allowed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from conduit_py.cli.mcp import PERMISSIONS, make_server

YAML = """
version: 2.2
pipelines:
  - id: orders
    connectors:
      - id: made
        type: source
        plugin: generator
        settings: {recordCount: "3", format.type: structured, format.options.id: int}
      - {id: kept, type: destination, plugin: log}
"""
CODE = "open('loaded', 'w')\n"


async def call(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    return "".join(getattr(part, "text", "") for part in answer.content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(YAML)
    (tmp_path / "code.py").write_text(CODE)
    return tmp_path


async def test_by_default_there_are_only_tools_that_read(folder: Path) -> None:
    async with Client(make_server(folder, frozenset())) as client:
        tools = (await client.list_tools()).tools
        code = await call(client, "validate", file="code.py")
        outside = await call(client, "validate", file="../orders.yaml")

    assert {tool.name for tool in tools} == {
        *("list_plugins", "describe_plugin", "pipeline_schema", "validate", "explain", "list_pipelines"),
        *("describe_pipeline", "list_dead_letters", "show_dead_letter"),
    }
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
    assert "code.py is code, which is loaded only with `conduit-py mcp --allow run`" in code
    assert not (folder / "loaded").exists()
    assert "is not below the folder of this server" in outside


async def test_every_permission_adds_its_tools(folder: Path) -> None:
    async with Client(make_server(folder, frozenset(PERMISSIONS))) as client:
        names = {tool.name: tool for tool in (await client.list_tools()).tools}

    added = {name for name, tool in names.items() if tool.annotations and not tool.annotations.read_only_hint}
    assert added == {"scaffold", "run", "start_pipeline", "stop_pipeline", "replay_dead_letters"}


async def test_files_and_texts_are_validated_explained_and_run(folder: Path) -> None:
    async with Client(make_server(folder, frozenset(["run"]))) as client:
        wrong = await call(client, "validate", yaml=YAML.replace("log", "lag"))
        drawn = await call(client, "explain", file="orders.yaml")
        ran = await call(client, "run", yaml=YAML, seconds=120)
        schema = json.loads(await call(client, "pipeline_schema"))
        neither = await call(client, "validate")

    assert "there is no destination plugin 'lag'" in wrong
    assert "(exit code 2)" in wrong
    assert "made" in drawn
    assert "kept" in drawn
    assert '"acked": 3' in ran or '"acked":3' in ran
    assert schema["$defs"]["connector"]["properties"]["plugin"]["examples"]
    assert "give either `file`, the name of a file, or `yaml`, a text in YAML" in neither


async def test_a_server_that_is_not_there_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_URL", "http://127.0.0.1:1")
    async with Client(make_server(folder, frozenset())) as client:
        answer = await call(client, "list_pipelines")

    assert "server.unreachable" in answer
    assert "(exit code 3)" in answer


async def test_it_is_served_on_stdin_and_stdout(folder: Path) -> None:
    command = ["-m", "conduit_py.cli.main", "mcp", "--root", str(folder), "--allow", "run", "--allow", "write"]
    async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
        tools = (await client.list_tools()).tools
        # A name that looks like an option is a name.
        answer = await call(client, "describe_plugin", kind="source", name="--help")

    assert {"run", "scaffold"} <= {tool.name for tool in tools}
    assert "there is no source plugin" in answer

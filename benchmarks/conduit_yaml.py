"""G: a pipeline in the YAML of Conduit, from its generator to a file, and the same by hand."""

import random
from base64 import b64encode
from functools import partial
from pathlib import Path

import orjson

from benchmarks.pipelines import run_to_end
from benchmarks.work import CONTROL, LOOP, Contender, Count, Work, count_lines
from conduit_py.config.load import load_file

YAML = """
version: "2.2"
pipelines:
  - id: generator-to-file
    status: running
    connectors:
      - id: made
        type: source
        plugin: builtin:generator
        settings:
          recordCount: "{records}"
          format.type: structured
          format.options.id: int
          format.options.name: string
          format.options.company: string
          format.options.trial: bool
          operations: create
      - id: kept
        type: destination
        plugin: builtin:file
        settings:
          path: {path}
"""


def generator_yaml(records: int, folder: Path, *, in_memory: bool = False) -> Count:
    """A pipeline in the YAML of Conduit, unchanged: the generator makes records of four fields, a file keeps them."""
    (folder / "pipeline.yaml").write_text(YAML.format(records=records, path=folder / "out.jsonl"))
    loaded = load_file(folder / "pipeline.yaml")
    assert not loaded.problems, loaded.problems
    run_to_end(loaded.pipelines[0].pipeline, None if in_memory else folder)
    return count_lines(folder / "out.jsonl")


def generator_loop(records: int, folder: Path) -> Count:
    """By hand: random values of the same four types in lines of the same form. The values are others."""
    draw = random.Random(0).getrandbits
    encode = orjson.dumps
    with (folder / "out.jsonl").open("wb") as out:
        for number in range(records):
            after = {"id": draw(31), "name": f"{draw(40):x}", "company": f"{draw(40):x}", "trial": bool(draw(1))}
            key = b64encode(b"%d" % number).decode()
            position = b64encode(b"generator:1:%d" % number).decode()
            payload = {"before": None, "after": after}
            record = {"position": position, "operation": "create", "metadata": {}, "key": key, "payload": payload}
            out.write(encode(record) + b"\n")
    return count_lines(folder / "out.jsonl")


_TITLE = "generator to file in Conduit's YAML, four fields"
_LOOPS: dict[str, Contender] = {LOOP: generator_loop, CONTROL: generator_loop}

G = Work(_TITLE, _LOOPS | {"conduit-py, YAML": generator_yaml}, digest=lambda folder: "")
COUNTED_G = Work(
    f"{_TITLE}, the state in memory",
    _LOOPS | {"conduit-py, YAML": partial(generator_yaml, in_memory=True)},
    digest=lambda folder: "",
)

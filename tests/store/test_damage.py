"""Bytes of `state.db` and `letters.db` that are not what was written: the error names the file and what to do."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import EnvironmentUnfit, LetterUnknown, StateFailed
from conduit_py.positions import HistoryPoint, PositionHistory
from conduit_py.record import Record
from conduit_py.status import PipelineState, Status
from conduit_py.store.claim import Changes
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import ConnectorEntry
from conduit_py.store.stored_letter import LetterFilter

CASES = 100
PIPELINES = ("orders", "prices")


async def fill(directory: Path) -> None:
    """A state of every kind, in several pages of each file."""
    async with await SqliteStore.open(directory) as store:
        for pipeline in PIPELINES:
            history = PositionHistory([HistoryPoint(float(at), b"%d" % at) for at in range(20)])
            for number in range(30):
                source = f"source-{number}"
                await store.save_positions(pipeline, {source: b"%d" % number * 30}, {source: history})
                entry = ConnectorEntry("source", "file", {"path": f"a{number}"}, "01")
                await store.save_connector(pipeline, source, entry)
            await store.save_state(pipeline, PipelineState(Status.RUNNING))
            claim = await store.claim(pipeline)
            await claim.commit(Changes(1, checkpoint=b"c" * 50, puts={b"%d" % n: b"v" * 40 for n in range(40)}))
            await store.letters.store([letter(pipeline, number) for number in range(40)])


def letter(pipeline: str, number: int) -> DeadLetter:
    record = Record.of({"n": number, "text": "x" * 60}, position=b"%d" % number)
    failure = Failure("lake", f"row {number}: bad price")
    return DeadLetter(pipeline, MessageId("web", number, ()), b"%d" % number, record, [failure], at=1000.0 + number)


def damage(file: Path, rng: random.Random) -> str:
    """Change some bytes of a file; return what was done."""
    content = bytearray(file.read_bytes())
    at, kind = rng.randrange(len(content)), rng.choice(["flip", "zero", "noise", "cut", "page"])
    size = rng.choice([1, 8, 200])
    if kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        content[at : at + size] = bytes(len(content[at : at + size]))
    elif kind == "noise":
        content[at : at + size] = rng.randbytes(len(content[at : at + size]))
    elif kind == "page":
        start = at // 4096 * 4096
        content[start : start + 4096] = bytes(4096)
    else:
        del content[at:]
    file.write_bytes(content)
    return f"{kind} at {at} of {file.name}, size {size}"


async def use(store: SqliteStore) -> None:
    """Everything that pipelines and people ask of a state; what is not there any more is no error."""
    for pipeline in PIPELINES:
        await store.pipelines()
        await store.state(pipeline)
        await store.positions(pipeline)
        await store.connectors(pipeline)
        await store.position_history(pipeline, "source-3")
        await store.claim_state(pipeline)
        claim = await store.claim(pipeline)
        await claim.scan()
        await store.save_positions(pipeline, {"source-3": b"new"})
        await store.save_state(pipeline, PipelineState(Status.COMPLETED))
        await store.letters.count()
        await store.letters.causes(LetterFilter(pipeline=pipeline))
        page = await store.letters.page(LetterFilter(pipeline=pipeline), limit=1000)
        for summary in page.letters:
            with suppress(LetterUnknown):
                await store.letters.letter(summary.id)
        await store.letters.queue(pipeline, {summary.id: ["lake"] for summary in page.letters[:5]})
        await store.letters.replay_queue(pipeline, 0, 10)
        await store.letters.store([letter(pipeline, number) for number in range(35, 45)])
        await store.letters.retain(pipeline, 1010.0, 30)


@pytest.mark.parametrize("name", ["state.db", "letters.db"])
async def test_damage_is_reported_by_the_file_and_what_to_do(name: str, tmp_path: Path) -> None:
    await fill(tmp_path / "whole")
    rng = random.Random(name)
    wrong: list[str] = []
    refused = 0
    for case in range(CASES):
        directory = tmp_path / f"case-{case}"
        shutil.copytree(tmp_path / "whole", directory)
        done = damage(directory / name, rng)
        try:
            async with await SqliteStore.open(directory) as store:
                await use(store)
        except (EnvironmentUnfit, StateFailed) as error:
            refused += 1
            if str(directory / name) not in error.message or not error.suggestion:
                wrong.append(f"{done}: {error.message} ({error.suggestion})")
        except Exception as error:
            wrong.append(f"{done}: {type(error).__name__}: {error}")
        shutil.rmtree(directory)

    assert "\n".join(wrong) == ""
    assert refused > CASES // 4

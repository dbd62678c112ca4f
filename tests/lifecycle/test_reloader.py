"""A fleet follows its files: the least that each edit takes, nothing for bad ones, and what users stopped stays so."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from followed_folder import Site, following, text
from waiting import until

from conduit_py.cli.serve import watch
from conduit_py.status import Status, Stopper

YAML = """
version: 2.2
pipelines:
  - id: {id}
    status: {status}
    connectors:
      - {{id: made, type: source, plugin: generator, settings: {{rate: 10, format.type: raw, format.options.x: int}}}}
      - {{id: kept, type: destination, plugin: log}}
"""

FATAL = """
from conduit_py import Destination, FatalError, Pipeline, Source
from conduit_connectors import generator, log

def {name}(record):
    {body}

failing = Pipeline(
    "failing",
    sources=[Source("made", generator.Source(rate=10, fields={{"id": "index"}}))],
    processors=[{name}],
    destinations=[Destination("kept", log.Destination())],
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipelines").mkdir()
    return tmp_path / "pipelines"


async def test_what_did_not_change_is_left_alone(folder: Path) -> None:
    async with following(folder, p_py=text("p"), q_py=text("q")) as site:
        await until(lambda: site.run_of("p"))
        run = site.run_of("p")
        site.write("p.py", "# a comment\n" + text("p"))
        done = await site.reload()

        assert done.steps == {}
        assert site.run_of("p") is run


async def test_a_processor_is_exchanged_and_the_run_goes_on(folder: Path) -> None:
    async with following(folder, p_py=text("p"), q_py=text("q")) as site:
        await until(lambda: site.run_of("p") and site.run_of("q"))
        runs = site.run_of("p"), site.run_of("q")
        site.write("p.py", text("p", mark="new"))
        done = await site.reload()

        assert done.steps == {"p": "swap"}
        assert (site.run_of("p"), site.run_of("q")) == runs
        assert site.fleet["p"].state.status is Status.RUNNING


async def test_a_connector_drains_and_restarts_and_words_do_neither(folder: Path) -> None:
    async with following(folder, p_py=text("p"), q_py=text("q")) as site:
        await until(lambda: site.run_of("p") and site.run_of("q"))
        runs = site.run_of("p"), site.run_of("q")
        site.write("p.py", text("p", rate=70))
        site.write("q.py", text("q", description="better said"))
        done = await site.reload()

        assert done.steps == {"p": "restart", "q": "note"}
        assert site.run_of("p") is not runs[0]
        assert site.run_of("q") is runs[1]
        assert site.fleet["q"].pipeline.settings.description == "better said"
        await until(lambda: site.fleet["p"].state.status is Status.RUNNING)


async def test_a_rotated_secret_is_distinguished_from_an_edit(folder: Path) -> None:
    (folder / "rate").write_text("10")
    yaml = YAML.format(id="p", status="running").replace("rate: 10", "rate: 'file:./rate'")
    async with following(folder, p_yaml=yaml) as site:
        await until(lambda: site.run_of("p"))
        (folder / "rate").write_text("20")
        done = await site.reload(afresh=True)
        site.write("p.yaml", yaml.replace("format.type: raw", "format.type: structured"))
        await site.reload()
        rotated, edited = (each for each in site.fleet["p"].log.events if each.event == "changed")

    assert done.steps == {"p": "restart"}
    outside = " (its file is the same: a secret or something else that it uses is not)"
    assert rotated.text == f"the source made changed{outside}, so it is drained and restarted"
    assert edited.text == "the source made changed, so it is drained and restarted"


async def test_a_secret_that_was_rotated_is_shown_until_it_is_in_use(folder: Path) -> None:
    (folder / "rate").write_text("10\n")
    yaml = YAML.format(id="p", status="running").replace("rate: 10", "rate: 'file:./rate'")
    async with following(folder, p_yaml=yaml, other_py=text("other")) as site:
        await until(lambda: site.run_of("p"))
        run = site.run_of("p")
        await site.reloader.check_secrets()
        unchanged = site.fleet["p"].definition
        (folder / "rate").write_text("20\n")
        await site.reloader.check_secrets()
        await site.reload()  # which reads no secret again, because no file was edited
        rotated, problems, same_run = site.fleet["p"].definition, site.fleet.problems, site.run_of("p")
        (folder / "rate").unlink()
        await site.reloader.check_secrets()
        away = site.fleet["p"].definition
        (folder / "rate").write_text("10\n")
        await site.reloader.check_secrets()
        back = site.fleet["p"].definition
        (folder / "rate").write_text("30\n")
        await site.reloader.check_secrets()
        await site.reload(afresh=True)
        await site.reloader.check_secrets()

        assert (unchanged, back, site.fleet["p"].definition, site.fleet["other"].definition) == (None, None, None, None)
    assert rotated == away
    assert rotated is not None
    assert (
        rotated.message == f"the secret in {folder / 'rate'} is not what it was when it was read; the old one is in use"
    )
    assert rotated.suggestion == (
        "it is used when the pipeline connects again; at once with `conduit-py pipelines reload`"
    )
    assert [problem.message for problem in problems] == [rotated.message]
    assert same_run is run


async def test_files_come_and_go(folder: Path) -> None:
    async with following(folder, p_py=text("p")) as site:
        site.write("q.py", text("q"))
        (folder / "p.py").rename(folder / "p2.py")
        assert (await site.reload()).steps == {"q": "add"}
        await until(lambda: site.fleet["q"].state.status is Status.RUNNING)
        (folder / "q.py").unlink()
        assert (await site.reload()).steps == {"q": "remove"}

        assert [member.pipeline.id for member in site.fleet] == ["p"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("def broken(:\n", id="syntax"),
        pytest.param("", id="empty"),
        pytest.param("\n# nothing yet\n", id="comment"),
        pytest.param("import nowhere_to_be_found\n", id="import"),
        pytest.param("1 / 0\n", id="error"),
        pytest.param(text("p").replace("rate=", "rat="), id="option"),
    ],
)
async def test_a_bad_edit_touches_nothing_and_is_shown_until_it_is_mended(folder: Path, bad: str) -> None:
    async with following(folder, p_py=text("p")) as site:
        await until(lambda: site.run_of("p"))
        run = site.run_of("p")
        site.write("p.py", bad)
        done = await site.reload()
        assert done.steps == {}
        problem = site.fleet["p"].definition
        assert problem is not None
        assert problem.file == str(folder / "p.py")
        await site.reload()
        assert site.fleet["p"].definition == problem
        site.write("p.py", text("p"))
        await site.reload()

        assert site.fleet["p"].definition is None
        assert site.run_of("p") is run


async def test_an_id_used_twice_keeps_the_one_that_runs(folder: Path) -> None:
    async with following(folder, p_py=text("p")) as site:
        await until(lambda: site.run_of("p"))
        run = site.run_of("p")
        site.write("copy.py", text("p", mark="copy"))
        done = await site.reload()
        assert done.steps == {}
        problem = site.fleet["p"].definition
        assert problem is not None
        assert "also used in" in problem.message
        (folder / "copy.py").unlink()
        await site.reload()

        assert site.fleet["p"].definition is None
        assert site.run_of("p") is run


async def test_what_the_user_stopped_stays_stopped_with_the_new_definition(folder: Path) -> None:
    async with following(folder, p_py=text("p")) as site:
        await until(lambda: site.fleet["p"].state.status is Status.RUNNING)
        site.fleet.stop("p")
        await site.fleet["p"].ended.wait()
        site.write("p.py", text("p", rate=90, mark="new"))
        done = await site.reload()

        assert done.steps == {"p": "note"}
        assert not site.fleet["p"].running
        assert site.fleet["p"].state.stopped_by is Stopper.USER
        site.fleet.start("p")
        await until(lambda: (progress := site.fleet["p"].progress()) and progress.acked > 3)


async def test_what_failed_for_good_is_started_again_once_its_definition_changed(folder: Path) -> None:
    bad = FATAL.format(name="check", body='raise FatalError("not with me")')
    async with following(folder, f_py=bad) as site:
        await until(lambda: site.fleet["failing"].state.status is Status.DEGRADED)
        site.write("f.py", bad + "\n# a comment mends nothing\n")
        assert (await site.reload()).steps == {}
        assert site.fleet["failing"].state.status is Status.DEGRADED
        site.write("f.py", FATAL.format(name="check", body="return record"))
        assert (await site.reload()).steps == {"failing": "note"}

        await until(lambda: (progress := site.fleet["failing"].progress()) and progress.acked > 2)
        assert site.run_of("failing") is not None


async def test_a_processor_that_cannot_be_opened_is_named_and_the_old_one_goes_on(folder: Path) -> None:
    plugin = """
from conduit_py import Destination, Pipeline, Processor, Source, sdk
from conduit_connectors import generator, log

class Opening(sdk.Processor[sdk.Options]):
    def open(self):
        {open}
    def process(self, record):
        return record

p = Pipeline(
    "p",
    sources=[Source("made", generator.Source(rate=50, fields={{"id": "index"}}))],
    processors=[Processor("opening", Opening())],
    destinations=[Destination("kept", log.Destination())],
)
"""
    async with following(folder, p_py=plugin.format(open="pass")) as site:
        await until(lambda: (progress := site.fleet["p"].progress()) and progress.acked)
        run = site.run_of("p")
        site.write("p.py", plugin.format(open='raise OSError("no service")'))
        assert (await site.reload()).steps == {"p": "swap"}
        problem = site.fleet["p"].definition
        assert problem is not None
        assert (problem.path, problem.message) == ("opening", "opening: open failed: OSError: no service")
        assert problem.file == str(folder / "p.py")
        assert problem.line == 14
        await site.reload()
        assert site.fleet["p"].definition == problem
        before = site.fleet["p"].progress()
        await until(lambda: site.fleet["p"].progress().acked > before.acked)  # type: ignore[union-attr]
        assert site.run_of("p") is run
        site.write("p.py", plugin.format(open="self.ready = True"))
        await site.reload()

        assert site.fleet["p"].definition is None
        assert site.run_of("p") is run


async def test_modules_beside_a_file_are_followed_through_each_other(folder: Path) -> None:
    importing = (
        text("p").replace('"old"', "inner.WORD").replace("from conduit_py ", "import outer\nfrom conduit_py ", 1)
    )
    importing = importing.replace("def mark", "from outer import inner\n\ndef mark")
    (folder / "outer.py").write_text("import inner\n")
    (folder / "inner.py").write_text('WORD = "old"\n')
    async with following(folder, p_py=importing, q_py=text("q")) as site:
        assert (await site.reload()).steps == {}
        site.write("inner.py", 'WORD = "new"\n')
        assert (await site.reload()).steps == {"p": "swap"}
        processor = site.fleet["p"].pipeline.processors[0].processor
        assert processor is not None
        assert processor.function.__globals__["inner"].WORD == "new"  # type: ignore[attr-defined]
        site.write("inner.py", "WORD = \n")
        await site.reload()
        assert site.fleet["p"].definition is not None
        (folder / "inner.py").unlink()
        await site.reload()
        problem = site.fleet["p"].definition
        assert problem is not None
        assert "inner" in problem.message
        site.write("inner.py", 'WORD = "new"\n')
        await site.reload()

        assert site.fleet["p"].definition is None


async def test_the_status_that_a_file_wants_is_carried_out_when_it_changes(folder: Path) -> None:
    async with following(folder, p_yaml=YAML.format(id="p", status="stopped")) as site:
        assert not site.fleet["p"].running
        site.write("p.yaml", YAML.format(id="p", status="running"))
        await site.reload()
        await until(lambda: site.fleet["p"].state.status is Status.RUNNING)
        site.write("p.yaml", YAML.format(id="p", status="stopped"))
        await site.reload()
        await site.fleet["p"].ended.wait()

        assert site.fleet["p"].state.stopped_by is Stopper.USER


async def test_edits_that_come_faster_than_they_can_be_carried_out_end_with_the_last(folder: Path) -> None:
    async with following(folder, p_py=text("p")) as site:
        await until(lambda: site.run_of("p"))
        for number in range(6):
            site.write("p.py", text("p", rate=50 + number % 3, mark=f"number {number}"))
            await site.reloader.reload()
        await until(lambda: not site.reloader.busy)

        processor = site.fleet["p"].pipeline.processors[0].processor
        assert processor is not None
        assert processor.function.__code__.co_consts[1] == "number 5"  # type: ignore[attr-defined]
        await until(lambda: (progress := site.fleet["p"].progress()) and progress.acked > 3)


WAITING = """
import pathlib, time
while not pathlib.Path({signal!r}).exists():
    time.sleep(0.01)
"""


async def test_a_file_whose_code_does_not_end_is_named_and_keeps_no_server_from_ending(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(folder, slow_seconds=0.01, a_py=text("a")) as site:
        site.write("b.py", WAITING.format(signal=str(tmp_path / "go")) + text("b"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.reload)
            await until(lambda: f"{folder / 'b.py'} takes long to load" in caplog.text)
            nursery.cancel_scope.cancel()
        assert [member.pipeline.id for member in site.fleet] == ["a"]
        (tmp_path / "go").touch()
        done = await site.reload()

        assert done.steps == {"b": "add"}


async def test_a_folder_that_anybody_may_write_to_is_not_followed(folder: Path) -> None:
    async with following(folder, p_py=text("p")) as site:
        os.chmod(folder, 0o777)
        site.write("p.py", text("p", mark="foreign"))
        assert (await site.reload()).steps == {}
        problem = site.fleet["p"].definition
        assert problem is not None
        assert "can be written to by anybody" in problem.message
        os.chmod(folder, 0o755)

        assert (await site.reload()).steps == {"p": "swap"}
        assert site.fleet["p"].definition is None


class TestWatch:
    """Editors and how they write; the watcher may not be fooled."""

    @staticmethod
    @asynccontextmanager
    async def watching(folder: Path, **files: Any) -> AsyncIterator[Site]:
        async with following(folder, **files) as site, trio.open_nursery() as nursery:
            closing = trio.Event()
            nursery.start_soon(watch, site.reloader, closing)
            await until(lambda: site.run_of("p"))
            yield site
            closing.set()

    @staticmethod
    def marked(site: Site, mark: str) -> bool:
        processor = site.fleet["p"].pipeline.processors[0].processor
        return processor is not None and mark in processor.function.__code__.co_consts  # type: ignore[attr-defined]

    async def test_every_way_of_saving_a_file_is_noticed(self, folder: Path) -> None:
        async with self.watching(folder, p_py=text("p")) as site:
            run = site.run_of("p")
            site.write("p.py", text("p", mark="in place"))
            await until(lambda: self.marked(site, "in place"))
            (folder / ".p.py.tmp").write_text(text("p", mark="renamed"))
            os.replace(folder / ".p.py.tmp", folder / "p.py")
            await until(lambda: self.marked(site, "renamed"))
            (folder / "p.py").rename(folder / "p.py~")
            (folder / "p.py").write_text(text("p", mark="backed up"))
            (folder / "p.py~").unlink()
            await until(lambda: self.marked(site, "backed up"))

            assert site.run_of("p") is run

    async def test_a_file_that_is_written_slowly_or_away_for_a_moment_harms_nothing(self, folder: Path) -> None:
        async with self.watching(folder, p_py=text("p")) as site:
            run = site.run_of("p")
            whole = text("p", mark="slowly")
            with (folder / "p.py").open("w") as file:
                for start in range(0, len(whole), len(whole) // 8):
                    file.write(whole[start : start + len(whole) // 8])
                    file.flush()
                    await trio.sleep(0.1)
            await until(lambda: self.marked(site, "slowly"))
            (folder / "p.py").unlink()
            await trio.sleep(0.7)
            site.write("p.py", text("p", mark="back"))
            await until(lambda: self.marked(site, "back"))

            assert site.run_of("p") is run
            assert site.fleet["p"].definition is None

    async def test_a_burst_of_files_and_a_removal(self, folder: Path) -> None:
        async with self.watching(folder, p_py=text("p")) as site:
            for number in range(10):
                site.write(f"n{number}.py", text(f"n{number}"))
            await until(lambda: len(site.fleet) == 11)
            for number in range(10):
                (folder / f"n{number}.py").unlink()
            await until(lambda: len(site.fleet) == 1)

"""Secrets that were rotated: who uses the new one, and when."""

from pathlib import Path

from followed_folder import following, text
from waiting import until

from conduit_py.status import Status

GUARDED = """
from pathlib import Path
from conduit_connectors import generator, log
from conduit_py import FatalError, Pipeline, secret

def guarded(id, password, **more):
    def enter(record):
        if password != (Path(__file__).parent / "door").read_text():
            raise FatalError("the password is wrong")
        return record
    source, to = generator.Source(rate=50, fields={{"n": "index"}}, **more), log.Destination()
    return Pipeline(id, sources={{"in": source}}, processors=[enter], destinations={{"out": to}})

p = guarded("p", secret("file:./password"){more})
"""


async def test_a_pipeline_that_failed_goes_on_with_the_secret_that_is_there_now(tmp_path: Path) -> None:
    for name in ("password", "door"):
        (tmp_path / name).write_text("first")
    async with following(tmp_path, p_py=GUARDED.format(more=""), other_py=text("other")) as site:
        await until(lambda: site.run_of("p") and site.run_of("other"))
        other = site.run_of("other")
        (tmp_path / "door").write_text("second")
        await until(lambda: site.fleet["p"].state.status is Status.DEGRADED)
        await site.reloader.check_secrets()
        unrotated = site.fleet["p"].state.status
        # Between the two versions, as where a file is written in two steps.
        (tmp_path / "password").write_text("")
        await site.reloader.check_secrets()
        between = site.fleet["p"].state.status, site.fleet["p"].definition
        (tmp_path / "password").write_text("second")
        await site.reloader.check_secrets()
        await until(lambda: site.run_of("p"))

        assert unrotated is Status.DEGRADED
        assert between[0] is Status.DEGRADED
        assert between[1] is not None
        assert (site.fleet["p"].definition, site.fleet["other"].definition) == (None, None)
        assert site.run_of("other") is other


async def test_a_pipeline_that_has_ended_has_the_new_secret_at_its_next_start(tmp_path: Path) -> None:
    for name in ("password", "door"):
        (tmp_path / name).write_text("first")
    async with following(tmp_path, p_py=GUARDED.format(more=", count=1")) as site:
        await until(lambda: site.fleet["p"].state.status is Status.COMPLETED)
        old = site.fleet["p"].graph
        (tmp_path / "password").write_text("second")
        await site.reloader.check_secrets()
        await until(lambda: not site.reloader.busy)

        assert site.fleet["p"].graph is not old
        assert (site.fleet["p"].state.status, site.fleet["p"].definition) == (Status.COMPLETED, None)

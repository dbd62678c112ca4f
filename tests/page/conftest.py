"""A real browser that looks at a real server."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from warm_python import WarmCommand

expect.set_options(timeout=120_000)
BROWSERS = ("chromium-headless-shell", "chromium")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIOLATIONS = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's browser without a window; installed, by the first worker that wants it, where it is missing.

    It is the same engine. With all that belongs to windows and users, every page would cost four times the CPU.
    """
    with (Path(tempfile.gettempdir()) / f"conduit-py-chromium-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which(BROWSERS[0]) is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
            _install()
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("chromium is needed: install it so that it is in the PATH")
    return found


def _install() -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qy", "--no-install-recommends", BROWSERS[0], "fonts-dejavu-core"]
    # The package lists of the machine may be missing or old. An older Debian has only the browser with windows.
    for line in (install, ["apt-get", "update", "-q"], install, [*install[:-2], BROWSERS[1], install[-1]]):
        subprocess.run(line, check=False, capture_output=True, timeout=600, env=quiet)
        if shutil.which(BROWSERS[0]) is not None:
            return


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    # Not for the session: while Playwright runs, asyncio.run() fails in every other test of the same worker.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens addresses, each in a browser of its own; afterwards none may have broken its policy or raised an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open(address: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
        contexts.append(context)
        context.add_init_script(VIOLATIONS)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "Refused to" in message.text else None)
        page.goto(address)
        return page

    yield open
    violations = [each for context in contexts for page in context.pages for each in page.evaluate("window.violations")]
    for context in contexts:
        context.close()
    assert (violations, errors) == ([], [])


class Site:
    """A real `conduit-py serve` on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipelines = folder / "pipelines"
        self.pipelines.mkdir()
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.http = httpx2.Client(timeout=300, verify=False)  # to make one without reads all certificates

    def write(self, name: str, text: str) -> None:
        (self.pipelines / name).write_text(text)

    def start(self, *arguments: str, port: int = 0, **environment: str) -> "Site":
        """Start it and wait until it says where it serves."""
        places = ("--pipelines", "pipelines", "--state", "state", "--port", str(port))
        with (self.folder / "log").open("a") as log:
            self.process = WarmCommand(
                *("serve", *places, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **environment},
            )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert " on http" in said, (self.folder / "log").read_text()
        self.url = said.split()[-1]
        self.http.base_url = httpx2.URL(self.url)
        return self

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def status(self, id: str) -> str:
        shown: str = self.http.get(f"/api/v1/pipelines/{id}").raise_for_status().json()["status"]
        return shown


def until(wanted: Callable[[], object], seconds: float = 300) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., None]:
    return until


@contextmanager
def new_site(folder: Path) -> Iterator[Site]:
    """A server in a folder, not yet started; it ends with the block."""
    site = Site(folder)
    try:
        yield site
    finally:
        site.kill()
        site.http.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server of the test's own, not yet started."""
    with new_site(tmp_path) as site:
        yield site


NewSite = Callable[[Path], AbstractContextManager[Site]]


@pytest.fixture(scope="session", name="new_site")
def new_site_fixture() -> NewSite:
    return new_site


SHOP = '''
"""A shop: it flows, refuses some, and is slow at one end."""
import trio
from conduit_connectors import generator
from conduit_py import DeadLetters, Destination, Pipeline, Processor, Source, processor
from conduit_py.sdk import DestinationConnector as Sink, Options

class Slow(Sink[Options]):
    """Takes its time, whatever comes."""
    async def write(self, batch):
        await trio.sleep(0.3)

class Quick(Sink[Options]):
    """Takes everything."""
    async def write(self, batch):
        pass

FIELDS = {"id": "index", "amount": "float"}

@processor
def cents(record):
    record.payload["cents"] = round(record.payload["amount"] * 100)
    del record.payload["amount"]
    return record

@processor
def picky(record):
    if record.payload["id"] < 3:
        raise ValueError(f"order {record.payload['id']} is too small")
    return record

flowing = Pipeline("flowing", description="orders that flow",
    sources=[Source("web", generator.Source(rate=200, fields=FIELDS))],
    processors=[cents], destinations=[Destination("lake", Quick())])
pressed = Pipeline("pressed",
    sources=[Source("flood", generator.Source(fields=FIELDS))],
    destinations=[Destination("slow", Slow()), Destination("quick", Quick())])
broken = Pipeline("broken",
    sources=[Source("shop", generator.Source(rate=50, fields=FIELDS))],
    processors=[picky], destinations=[Destination("lake", Quick())])
'''


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that the tests of a file share: one pipeline flows, one is pressed, one is broken."""
    with new_site(tmp_path_factory.mktemp("shop")) as site:
        site.write("shop.py", SHOP)
        yield site.start()

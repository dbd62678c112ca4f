"""Takes the picture of the page that README and site show: `python tests/support/page_picture.py`, after `make page`.

The server, the pipelines and the browser are real. The picture carries the digest of the page that it shows, so a test
finds one of an older page. It takes four minutes: the charts show the last five.
"""

import hashlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent.parent
PICTURE = ROOT / "docs" / "images" / "page.png"
PAGE = ROOT / "conduit_py" / "server" / "page"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SECONDS = 240
HEADER_END = 33
"""Where the first chunk of a PNG ends, which has its size."""


def digest_of_page() -> str:
    """What tells two pages apart: each file that is served."""
    digest = hashlib.sha256()
    for path in sorted(PAGE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def with_digest(picture: bytes, digest: str) -> bytes:
    """The PNG with the digest in a chunk of text."""
    body = b"tEXt" + b"page\0" + digest.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return picture[:HEADER_END] + chunk + picture[HEADER_END:]


def digest_in(picture: bytes) -> str | None:
    """The digest that the picture carries."""
    found = re.search(rb"tEXtpage\0([0-9a-f]{64})", picture)
    return found[1].decode() if found else None


def take(seconds: float) -> bytes:
    """Serve the live example for a while, and return the picture of one of its pipelines."""
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        raise SystemExit("this needs chromium: apt-get install chromium-headless-shell")
    command = [
        str(Path(sys.executable).with_name("conduit-py")),
        "serve",
        "--pipelines",
        str(ROOT / "examples" / "live"),
    ]
    with tempfile.TemporaryDirectory() as state, (Path(state) / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--state", state, "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            time.sleep(seconds)
            with sync_playwright() as playwright:
                window = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS)
                page = window.new_page(viewport={"width": 1440, "height": 880}, color_scheme="dark")
                page.goto(f"{url}/#/pipelines/orders")
                # Rates are those of the last seconds, which this browser has seen.
                time.sleep(15)
                return page.screenshot()
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    PICTURE.write_bytes(with_digest(take(SECONDS), digest_of_page()))
    print(f"wrote {PICTURE.relative_to(ROOT)}: look at it")

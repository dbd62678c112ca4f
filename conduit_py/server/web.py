"""The page at `/`, built from `web/` and shipped with the package. It has no data of its own; it calls the API."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

router = APIRouter(include_in_schema=False)

PAGE = files("conduit_py.server") / "page"
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "favicon.svg": "image/svg+xml",
    "licences.txt": "text/plain; charset=utf-8",
}
PATHS = {"/" if name == "index.html" else f"/{name}": name for name in TYPES}
"""Which file answers which path. No other file of the folder is served."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page loads only its own files, calls only its own server, and never runs text as code or markup."""


@dataclass(frozen=True)
class PageFile:
    """A file of the page and its entity tag."""

    content: bytes
    type: str
    tag: str


@cache
def read_file(name: str) -> PageFile:
    """Read a file of the page, once."""
    # Cached: after an upgrade on disk, a running server must not mix the old page with a new script.
    content = (PAGE / name).read_bytes()
    return PageFile(content, TYPES[name], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


async def show_page(request: Request, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """A file of the page, or 304 when the browser has it already."""
    file = read_file(PATHS[request.scope["path"]])
    headers = {"etag": file.tag, "cache-control": "no-cache", "content-security-policy": POLICY}
    # Browsers ask each time, so a new version of the page is seen at once.
    if if_none_match is not None and file.tag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "content-type": file.type})


# A route for each file, no mount of the folder: a path with `..` has nothing to walk into.
for _path in PATHS:
    router.add_api_route(_path, show_page, methods=["GET"])

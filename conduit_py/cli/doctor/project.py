"""Project: checks of what a server would be started with: pipelines, address, tokens."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from conduit_py.cli.check import require_engines
from conduit_py.cli.complaint import shortened
from conduit_py.cli.doctor.finding import Finding, fail, ok, warn
from conduit_py.config.folder import load_folder
from conduit_py.errors import EnvironmentUnfit, PipelineInvalid, Problem
from conduit_py.graph.compile import compile_pipeline
from conduit_py.sdk.options import at


def check_pipelines(path: Path | None) -> Iterator[Finding]:
    """All mistakes of all pipelines, without starting any."""
    if path is None:
        yield ok("pipelines", "no folder was named, and there is none called pipelines here")
        return
    loaded = load_folder(path)
    problems, sound = list(loaded.problems), 0
    for each in loaded.pipelines:
        try:
            compile_pipeline(each.pipeline)
            sound += 1
        except PipelineInvalid as invalid:
            problems += [at(problem, each.id) for problem in invalid.problems]
    for problem in problems:
        bare = Problem(problem.path, problem.message, None, problem.file, problem.line)
        yield fail("pipelines", shortened(str(bare)), problem.suggestion and shortened(problem.suggestion))
    for warning in loaded.warnings:
        yield warn("pipelines", shortened(str(warning)))
    try:
        require_engines([each.pipeline for each in loaded.pipelines])
    except EnvironmentUnfit as unfit:
        yield fail("spark", unfit.message, unfit.suggestion)
    if sound or not problems:
        yield ok("pipelines", f"{sound} in {shortened(str(path))} {'is' if sound == 1 else 'are'} sound")


def check_address(host: str, port: int) -> Finding:
    """Whether a server could listen there now."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        fix = "if that is not your server, choose another with --port; 0 is any free one"
        return warn("address", f"cannot listen on {host} port {port} now: {error.strerror or error}", fix)
    return ok("address", f"{host} port {port} is free")


def check_tokens(file: Path | None) -> Finding:
    from conduit_py.server.tokens import load_tokens

    try:
        tokens = load_tokens(file, os.environ)
    except EnvironmentUnfit as unfit:
        return fail("tokens", shortened(unfit.message), unfit.suggestion)
    if not len(tokens):
        return ok("tokens", "none: a server listens on this machine only, and lets everybody on it in")
    return ok("tokens", f"{len(tokens)}, which nobody else can read")

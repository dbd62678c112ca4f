"""Tokens: who may do what. A token file has one `ROLE TOKEN` a line; `#` begins a comment."""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from conduit_py.errors import EnvironmentUnfit

VARIABLE = "CONDUIT_API_TOKEN"
LENGTH_MIN = 20
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what may follow "Bearer" in a header


class Role(IntEnum):
    """What a token allows; each role includes those before it."""

    READ = 1
    """Look at everything."""
    OPERATE = 2
    """Start, stop and restart pipelines, and set positions."""
    ADMIN = 3
    """Everything."""


class Tokens:
    """The tokens of a server. Only their digests are kept, and every look-up takes the same time."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = [(_digest(token), role) for token, role in roles.items()]

    def __len__(self) -> int:
        return len(self._roles)

    def role_of(self, token: str) -> Role | None:
        """The role of a token, or None if nobody was given it."""
        digest, found = _digest(token), None
        for known, role in self._roles:  # all of them, wherever it stands
            if hmac.compare_digest(digest, known):
                found = role
        return found


def load_tokens(file: Path | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """The tokens of a file, and the one in CONDUIT_API_TOKEN, which is an admin's. There may be none."""
    roles = _read(file) if file is not None else {}
    token = environment.get(VARIABLE, "").strip()
    if token:
        _check(token, VARIABLE)
        roles[token] = Role.ADMIN
    return Tokens(roles)


def _read(file: Path) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for number, line in enumerate(_private_text(file).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            role, token = _parse(words, f"{file}:{number}")
            if token in roles:
                raise _unfit(f"{file}:{number}: this token stands in an earlier line too", "give each role its own")
            roles[token] = role
    if not roles:
        raise _unfit(f"{file} has no token", "write a line such as `operate TOKEN`")
    return roles


def _private_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unfit(f"token file {file} is not a regular file", "name a file")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise _unfit(f"token file {file} can be used by others (mode {mode:04o})", f"chmod 600 {file}")
            return opened.read(1024 * 1024).decode()
    except OSError as error:
        raise _unfit(f"token file {file} cannot be read: {error.strerror}", "check its path and owner") from error
    except UnicodeDecodeError as error:
        raise _unfit(f"token file {file} is not text", "write lines such as `operate TOKEN`") from error


def _parse(words: list[str], place: str) -> tuple[Role, str]:
    if len(words) != 2:
        raise _unfit(f"{place}: a line has a role and a token, not {len(words)} words", "write `operate TOKEN`")
    name, token = words
    if name not in ("read", "operate", "admin"):
        raise _unfit(f"{place}: there is no such role", "roles are read, operate and admin")
    _check(token, place)
    return Role[name.upper()], token


def _check(token: str, place: str) -> None:
    # The token itself is in no message: messages end up in logs.
    if len(token) < LENGTH_MIN or not _TOKEN.fullmatch(token):
        what = f"a token has at least {LENGTH_MIN} letters, digits or any of ._~+/- and may end in ="
        raise _unfit(f"{place}: {what}", 'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`')


def _unfit(message: str, suggestion: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(message, suggestion=suggestion)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()

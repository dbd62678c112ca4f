"""Connections of pymysql from an address, and what their errors mean. No error quotes a password."""

import re
import ssl
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT
from pymysql.converters import conversions

from conduit_py.sdk import FatalError, TransientError

CONNECT_SECONDS = 20
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_SSL_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_WRITE_ONLY = {kind: write for kind, write in conversions.items() if not isinstance(kind, int)}
"""Values are written as the library does, and read as the text that the server sends."""
_REFUSED_USER = frozenset({1044, 1045, 1049, 1130, 1131, 1132, 1133, 1227, 1251, 1698, 1820, 1862, 2059, 2061, 4151})
_LOST = frozenset({1040, 1041, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1927, 2002, 2003})
_LOST |= frozenset({2006, 2013, 2014, 2026, 2055, 4031, 1290, 1047, 1412, 1836})


def parse_address(url: str) -> dict[str, Any]:
    """Return the arguments of a connection. Raises FatalError if it is no address, and never quotes it."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        readable = (
            parts.scheme in ("mysql", "mariadb")
            and parts.hostname is not None
            # The rest of a password with a character of URLs in it, which the library would quote in its errors.
            and parts.netloc.count("@") <= 1
            and "@" not in parts.path + parts.query + parts.fragment
            and re.fullmatch(r"/[^/]+", parts.path)
        )
        port = parts.port or 3306
    except ValueError:
        readable = False
    if not readable:
        raise FatalError(
            "`url` is no address of a database",
            suggestion="write it as mysql://user:password@host:port/name, and special characters of the"
            " password as %40 for @, %3A for :, %2F for / and %25 for %",
        )
    return {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path[1:]),
        **_encryption(options),
    }


def connect(url: str, **more: Any) -> "pymysql.Connection[Any]":
    """Return a connection that speaks UTF-8 and commits every statement. Raises FatalError or TransientError."""
    settings = parse_address(url) | {
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_SECONDS,
        "program_name": "conduit-py",
        "conv": _WRITE_ONLY,
    }
    preferred = settings.pop("ssl_preferred", False)
    try:
        connection = pymysql.Connection(**settings | more, defer_connect=True)
        # The library prefers encryption without this too, but then it first loads all certificates of the machine.
        connection._ssl_required = not preferred
        connection.connect()
        return connection
    except (pymysql.Error, OSError, RuntimeError, ssl.SSLError) as error:
        raise connection_error(error) from error


def found_rows() -> dict[str, int]:
    """Return the argument with which an update counts the rows that it finds, not those that it changes."""
    return {"client_flag": CLIENT.FOUND_ROWS}


def connection_error(error: Exception) -> FatalError | TransientError:
    """Return what it means that no connection could be made."""
    if isinstance(error, RuntimeError) or error_code(error) in _REFUSED_USER:
        # Fatal: tried again for ever, a wrong password can lock the account.
        advice = "check the user, the password and the database in `url`, and who may connect from this machine"
        return FatalError(f"MariaDB refuses the user: {one_line(error)}", suggestion=advice)
    if isinstance(error, pymysql.err.OperationalError) and "certificate verify failed" in one_line(error):
        # Fatal: somebody may sit between here and the server, and a certificate does not change by itself.
        advice = "check ssl_ca and the host in `url`, and the certificate of the server"
        return FatalError(f"the certificate of MariaDB is refused: {one_line(error)}", suggestion=advice)
    if isinstance(error, pymysql.err.OperationalError) and "SSL" in one_line(error):
        return FatalError(f"MariaDB has no encryption: {one_line(error)}", suggestion="check ssl_mode in `url`")
    return TransientError(
        f"cannot connect to MariaDB: {one_line(error)}", suggestion="check the url and that the server runs"
    )


def is_lost(error: Exception) -> bool:
    """True if the connection or the server is the cause, so that it may go away by itself."""
    return isinstance(error, OSError) or error_code(error) in _LOST or isinstance(error, pymysql.err.InterfaceError)


def error_code(error: Exception) -> int:
    """Return the number of an error of the server; 0 if it has none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def one_line(error: Exception) -> str:
    """Return the text of an error of the server in one line."""
    code = error_code(error)
    text = " ".join(str(error.args[-1] if error.args else "").split()) or type(error).__name__
    return f"{text} ({code})" if code else text


def _encryption(options: dict[str, str]) -> dict[str, Any]:
    unknown = [name for name in options if name not in ("ssl_mode", *_SSL_FILES)]
    mode = options.get("ssl_mode", "verify_identity" if "ssl_ca" in options else "preferred")
    if unknown or mode not in _SSL_MODES:
        raise FatalError(
            "`url` has a parameter that is not known",
            suggestion=f"use ssl_mode ({', '.join(_SSL_MODES)}), {', '.join(_SSL_FILES)}",
        )
    if mode == "disabled":
        return {"ssl_disabled": True}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = mode == "verify_identity"
        if mode in ("preferred", "required"):
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_verify_locations(options["ssl_ca"]) if "ssl_ca" in options else context.load_default_certs()
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise FatalError(
            f"a certificate of `url` cannot be read: {error.strerror or type(error).__name__}",
            suggestion="check ssl_ca, ssl_cert and ssl_key",
        ) from error
    return {"ssl": context, "ssl_preferred": mode == "preferred"}

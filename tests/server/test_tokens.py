"""Tokens and addresses: what is taken, and what is refused before anything is served."""

from pathlib import Path

import pytest

from conduit_py.errors import EnvironmentUnfit
from conduit_py.server.access import Role, Tokens, load_tokens
from conduit_py.server.serve import ServerConfig

SOME = Tokens({"reader-reader-reader": Role.READ})


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "tokens"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_file_gives_each_token_its_role_and_the_environment_an_admin(tmp_path: Path) -> None:
    file = written(tmp_path, "# ours\nread reader-reader-reader\n\noperate operator-operator-op # night shift\n")
    tokens = load_tokens(file, {"CONDUIT_API_TOKEN": "admin-admin-admin-admin\n"})

    assert len(tokens) == 3
    assert tokens.role_of("reader-reader-reader") is Role.READ
    assert tokens.role_of("operator-operator-op") is Role.OPERATE
    assert tokens.role_of("admin-admin-admin-admin") is Role.ADMIN
    assert tokens.role_of("") is None
    assert tokens.role_of("reader-reader-reade") is None
    assert tokens.role_of("\udcff") is None


def test_there_may_be_none() -> None:
    assert len(load_tokens(None, {})) == 0
    assert len(load_tokens(None, {"CONDUIT_API_TOKEN": " "})) == 0


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("read reader-reader-reader", 0o644, "can be used by others (mode 0644)"),
        ("read reader-reader-reader", 0o620, "can be used by others (mode 0620)"),
        ("read reader-short", 0o600, "tokens:1: a token has at least 20"),
        ("read reader-reader-réader-reader", 0o600, "tokens:1: a token has at least 20"),
        ("\nking reader-reader-reader", 0o600, "tokens:2: there is no such role"),
        ("READ reader-reader-reader", 0o600, "tokens:1: there is no such role"),
        ("reader-reader-reader", 0o600, "tokens:1: a line has a role and a token, not 1 words"),
        ("# nobody", 0o600, "has no token"),
        ("read reader-reader-reader\nadmin reader-reader-reader", 0o600, "tokens:2: this token stands in an earlier"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_and_no_token_is_quoted(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        load_tokens(written(tmp_path, text, mode), {})

    assert reason in refused.value.message
    assert refused.value.suggestion
    assert "reader-" not in refused.value.message + refused.value.suggestion


def test_a_missing_file_a_folder_and_a_binary_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    for file in (tmp_path / "missing", tmp_path, binary):
        with pytest.raises(EnvironmentUnfit, match=r"token file .* (cannot be read|is not text)"):
            load_tokens(file, {})


def test_a_weak_token_in_the_environment_is_refused() -> None:
    with pytest.raises(EnvironmentUnfit, match="CONDUIT_API_TOKEN: a token has at least 20"):
        load_tokens(None, {"CONDUIT_API_TOKEN": "secret"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1", "some.name", "", "127.0.0.1.some.name"])
def test_an_address_that_others_can_reach_needs_tokens(host: str) -> None:
    with pytest.raises(EnvironmentUnfit, match="without a token"):
        ServerConfig(host=host).check()
    ServerConfig(host=host, tokens=SOME).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str) -> None:
    ServerConfig(host=host).check()


def test_half_of_a_tls_configuration_is_refused() -> None:
    for half in (
        ServerConfig(tls_cert=Path("c")),
        ServerConfig(tls_key=Path("k")),
        ServerConfig(tls_client_ca=Path("a")),
    ):
        with pytest.raises(EnvironmentUnfit, match="--tls-"):
            half.check()

"""No secret of a connector leaves the command: not on a screen, not in a log, not in the state directory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Serving

PASSWORD = "hunter2-99:Xy/correct"
ENCODED = "hunter2-99%3AXy%2Fcorrect"
SECRETS = (PASSWORD, ENCODED, "hunter2", "correct", "Xy/")

CONNECTOR = f'''
from pydantic import SecretStr
from conduit_py import DeadLetters, Destination, Pipeline, Source, sdk
from ends import Count


class VaultOptions(sdk.Options):
    url: str
    password: SecretStr
    how: str = "refuse"


class Vault(sdk.DestinationConnector[VaultOptions]):
    """Quotes its password in every error, as client libraries do, whole, in pieces and behind much text."""

    def write(self, batch):
        password = self.options.password.get_secret_value()
        user, host = self.options.url.split("://")[1].rsplit("@", 1)
        error = f"{{user}} with {{password}} at {{host}}; {{'x' * 8180}}{{password}} {{password!r}} row {{len(batch)}}"
        if self.options.how == "refuse":
            return dict.fromkeys(range(len(batch)), error)
        raise sdk.FatalError(error, suggestion=f"use another password than {{password}}")


def vault(how, letters):
    end = Vault(url="vault://app:{ENCODED}@vault.example/x", password="{PASSWORD}", how=how)
    return Pipeline(
        "kept", sources=[Source("count", Count(to=3))], destinations=[Destination("vault", end)], dead_letters=letters
    )
'''


def everything_in(folder: Path) -> str:
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    return "\n".join(file.read_bytes().decode("latin-1") for file in files)


def leaked(*texts: str) -> list[str]:
    return [secret for secret in SECRETS for text in texts if secret in text]


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(("how", "letters"), [("refuse", '"journal"'), ("refuse", '"drop"'), ("fail", '"stop"')])
def test_run_keeps_the_secrets_of_its_connectors(command: "Command", how: str, letters: str, debug: list[str]) -> None:
    file = command.write(f'{CONNECTOR}\npipeline = vault("{how}", DeadLetters({letters}))\n')
    done = command("run", str(file), "--state", "state", *debug)
    as_json = command("run", str(file), "--state", "state", "--fresh", "--json", *debug)

    assert leaked(done.stdout, done.stderr, as_json.stdout, as_json.stderr) == []
    assert leaked(everything_in(command.folder)) == []
    assert "***" in done.stderr + done.stdout + everything_in(command.folder)


def test_letters_of_an_old_password_do_not_show_it_after_a_rotation(serving: "Serving") -> None:
    file = serving.folder / "kept.py"
    file.write_text(f'{CONNECTOR}\nkept = vault("refuse", DeadLetters("journal"))\n')
    process = serving.start("--state", "state")
    serving.until("kept", lambda shown: shown["status"] == "completed")
    process.terminate()
    process.communicate()
    file.write_text(file.read_text().replace(ENCODED, "new-one").replace(PASSWORD, "new-one"))
    serving.start("--state", "state")
    listed = serving("dlq", "list", "--json").stdout
    causes = serving("dlq", "list", "--causes", "--json").stdout
    letter = json.loads(listed)["letters"][0]
    shown = serving("dlq", "show", letter["id"], "--json").stdout

    assert leaked(listed, causes, shown) == []
    assert "***" in letter["error"]
    assert letter["cause"].startswith("app:*** with *** at vault.example/x; xxx")


def test_a_syntax_error_does_not_show_a_line_with_a_text_in_it(command: "Command") -> None:
    done = command("check", str(command.write('end = Vault(password="hunter2-99:Xy/correct)\n')))

    assert leaked(done.stdout, done.stderr) == []
    assert "orders.py:1" in done.stderr


def test_a_problem_with_a_secret_option_does_not_show_its_value(command: "Command") -> None:
    options = CONNECTOR.replace("password: SecretStr", "password: SecretStr = Field(min_length=50)").replace(
        "import SecretStr", "import Field, SecretStr"
    )
    done = command("check", str(command.write(f'{options}\npipeline = vault("fail", DeadLetters("stop"))\n')))

    assert done.returncode == 2
    assert leaked(done.stdout, done.stderr) == []

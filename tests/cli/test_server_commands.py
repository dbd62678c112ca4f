"""The commands that operate a server, against a real one: what they do, what they print, how they end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside, Serving

STUCK = 'Lines(path="stuck.txt", stuck=True)'
READ, OPERATE = "read-" + "r" * 20, "operate-" + "o" * 20


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


def test_pipelines_are_listed_and_described(serving: "Serving") -> None:
    serving.add("endless")
    serving.add("short", "Count(to=100)")
    serving.add("broken", destination="Broken()")
    serving.start()
    serving.until("short", lambda shown: shown["status"] == "completed")
    serving.until("broken", lambda shown: shown["status"] == "degraded")
    listed = serving("pipelines", "list")
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines()}
    described = serving("pipelines", "describe", "broken")

    assert listed.returncode == 0
    assert rows["PIPELINE"][:2] == ["PIPELINE", "STATUS"]
    assert rows["endless"][1] == "running"
    assert rows["short"][1::2] == ["completed", "100", "0"]
    assert "the disk is on fire [run.fatal]" in listed.stdout
    assert {each["id"] for each in serving.json("pipelines", "list")["pipelines"]} == {"endless", "short", "broken"}
    assert described.returncode == 0
    assert described.stdout.startswith("broken: degraded since ")
    assert "last error: the disk is on fire [run.fatal] (call the fire brigade)" in described.stdout
    assert "delivery at_least_once, dead letters to stop" in described.stdout
    assert [line.split()[:2] for line in described.stdout.splitlines()[-2:]] == [
        ["count", "source"],
        ["lines", "destination"],
    ]


def test_a_pipeline_is_stopped_started_and_restarted(serving: "Serving") -> None:
    serving.add("endless")
    serving.start()
    stopped = serving.apart("pipelines", "stop", "endless")
    count = serving.json("pipelines", "describe", "endless")["progress"]["acked"]
    again = serving.apart("pipelines", "stop", "endless")
    started = serving.json("pipelines", "start", "endless")
    twice = serving.json("pipelines", "start", "endless")
    since = serving.json("pipelines", "describe", "endless")["since"]
    restarted = serving("pipelines", "restart", "endless")

    assert (stopped.returncode, stopped.stdout) == (0, "endless: stopped\n")
    assert (serving.command.folder / "endless.txt").read_text().splitlines()[:count] == [
        str(number) for number in range(1, count + 1)
    ]
    assert again.returncode == 1
    assert again.stdout == ""
    assert again.stderr == "error: pipeline 'endless' is not running [pipeline.not_running]\n"
    assert (started["id"], started["status"]) == ("endless", "running")
    assert twice == {
        "error": {"code": "pipeline.running", "message": "pipeline 'endless' is running already", "suggestion": None}
    }
    assert (restarted.returncode, restarted.stdout) == (0, "endless: running\n")
    assert serving.json("pipelines", "describe", "endless")["since"] > since


def test_a_stop_that_takes_too_long_says_what_holds_it_up_and_force_ends_it(serving: "Serving") -> None:
    serving.add("stuck", destination=STUCK)
    serving.start()
    serving.until("stuck", lambda shown: shown["progress"]["in_flight"])
    patient = serving("pipelines", "stop", "stuck", "--wait", "0.2")
    impatient = serving("pipelines", "stop", "stuck", "--wait", "0")
    forced = serving("pipelines", "stop", "stuck", "--force")

    assert patient.returncode == 1
    assert "stuck has not stopped within 0.2 s: it is stopping" in patient.stderr
    assert "`conduit-py pipelines stop stuck --force` does not wait for what is in flight" in patient.stderr
    assert (impatient.returncode, impatient.stdout) == (0, "stuck: stopping\n")
    assert (forced.returncode, forced.stdout) == (0, "stuck: stopped\n")


def test_a_pipeline_that_fails_at_once_is_no_success_to_start(serving: "Serving") -> None:
    serving.add("broken", destination="Broken()")
    serving.start()
    serving.until("broken", lambda shown: shown["status"] == "degraded")
    serving("pipelines", "restart", "broken")
    shown = serving.until("broken", lambda shown: shown["status"] == "degraded")
    restarted = serving("pipelines", "restart", "broken", "--wait", "60")

    assert shown["error"]["suggestion"] == "call the fire brigade"
    # It runs for a moment before it fails, and either may be what is seen.
    assert (restarted.returncode, restarted.stdout) in [(0, "broken: running\n"), (1, "broken: degraded\n")]
    assert ("call the fire brigade" in restarted.stderr) == (restarted.returncode == 1)


def test_positions_are_shown_set_and_reset_only_while_stopped(serving: "Serving") -> None:
    serving.add("endless")
    serving.start()
    refused = serving("positions", "reset", "endless", "count")
    also_refused = serving("positions", "set", "endless", "count", "MTAw")
    serving.apart("pipelines", "stop", "endless")
    before = serving.json("positions", "show", "endless")["positions"]["count"]
    reset = serving.apart("positions", "reset", "endless", "count")
    beginning = serving("positions", "show", "endless")
    as_text = serving.json("positions", "set", "endless", "count", "5000", "--text")
    shown = serving("positions", "show", "endless")
    serving("pipelines", "start", "endless")
    serving.until("endless", lambda shown: shown["progress"]["acked"])
    serving("pipelines", "stop", "endless")

    for done in (refused, also_refused):
        assert done.returncode == 1
        assert done.stderr == (
            "error: pipeline 'endless' is running [pipeline.running]\n"
            "  stop it first: it would overwrite the position\n"
        )
    assert (reset.returncode, reset.stdout) == (
        0,
        f"endless: count starts from the beginning; its position was {before}\n",
    )
    assert [line.split() for line in beginning.stdout.splitlines()[1:]] == [["count", "the", "beginning"]]
    position = b64encode(b"5000").decode()
    assert as_text == {"positions": {"count": position}, "before": {"count": None}}
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [["count", position, "5000"]]
    assert "5001" in (serving.command.folder / "endless.txt").read_text().splitlines()


def test_a_pipeline_starts_over(serving: "Serving") -> None:
    serving.add("short", "Count(to=100)")
    serving.start()
    serving.until("short", lambda shown: shown["status"] == "completed")
    neither = serving.apart("positions", "reset", "short")
    both = serving.apart("positions", "reset", "short", "count", "--all")
    contrary = serving.apart("positions", "reset", "short", "--all", "--keep-state")
    over = serving("positions", "reset", "short", "--all")
    shown = serving.json("positions", "show", "short")
    again = serving.json("positions", "reset", "short", "count", "--keep-state")

    for done in (neither, both, contrary):
        assert (done.returncode, done.stdout) == (2, "")
    assert "give SOURCE or --all" in " ".join(neither.stderr.split())
    assert (over.returncode, over.stdout) == (
        0,
        "short: starts from the beginning, with no state; its positions were count MTAw\n",
    )
    assert shown == {"positions": {"count": None}}
    assert again == {"positions": {"count": None}, "before": {"count": None}}


def test_a_source_is_set_back_to_where_it_was_at_a_time(serving: "Serving") -> None:
    serving.add("short", "Count(to=100)")
    serving.start()
    serving.until("short", lambda shown: shown["status"] == "completed")
    history = serving("positions", "history", "short", "count")
    points = serving.json("positions", "history", "short", "count")["points"]
    began = datetime.fromtimestamp(points[0]["at"] + 1e-6, UTC).replace(tzinfo=None).isoformat()
    back = serving("positions", "replay", "short", "count", "--from", began)
    shown = serving.json("positions", "show", "short")
    start = serving.json("positions", "replay", "short", "count", "--from", "start")
    early = serving("positions", "replay", "short", "count", "--from", "2001-01-01")
    ago = serving("positions", "replay", "short", "count", "--from", "0s")
    wrong = serving.apart("positions", "replay", "short", "count", "--from", "yesterday")

    assert [(point["position"] is None, point["start"]) for point in points] == [(True, True), (False, False)]
    assert history.stdout.splitlines()[0].split() == ["TIME", "(UTC)", "POSITION", "AS", "TEXT"]
    assert history.stdout.splitlines()[1].endswith("the beginning  a run began")
    assert back.stdout.startswith("short: count goes back to where it was at 20")
    assert back.stdout.endswith("; its position was MTAw\n")
    assert shown == {"positions": {"count": None}}
    assert start == {"positions": {"count": None}, "point": None, "before": {"count": None}}
    assert (early.returncode, "the oldest point is at" in early.stderr) == (1, True)
    assert (ago.returncode, ago.stdout.startswith("short: count goes back to where it was at 20")) == (0, True)
    assert wrong.returncode == 2
    assert "must be `start` or a time such as 2026-11-16T09:30" in " ".join(wrong.stderr.split())


def test_what_does_not_exist_is_answered_with_what_does(serving: "Serving") -> None:
    serving.add("endless")
    serving.start()
    nope = "error: there is no pipeline 'nope' [pipeline.unknown]\n  pipelines are endless\n"
    for arguments, stderr in [
        (("pipelines", "describe", "nope"), nope),
        (("pipelines", "restart", "nope"), nope),
        (("pipelines", "stop", ".."), nope.replace("nope", "..")),
        (("positions", "show", "nope"), nope),
        (
            ("positions", "reset", "endless", "nope"),
            "error: pipeline 'endless' has no source 'nope' [pipeline.unknown]\n  sources are count\n",
        ),
    ]:
        done = serving(*arguments)

        assert (done.returncode, done.stdout, done.stderr) == (1, "", stderr)


def test_tokens_open_what_their_role_allows(serving: "Serving") -> None:
    serving.add("endless")
    theirs = serving.command.write(f"read {READ}\noperate {OPERATE}\n", "tokens")
    mine = serving.command.write(f"{OPERATE}\n", "token")
    for file in (theirs, mine):
        file.chmod(0o600)
    serving.start("--token-file", "tokens")
    without = serving("pipelines", "list")
    wrong = serving("pipelines", "list", CONDUIT_API_TOKEN="w" * 30)
    reader = serving("pipelines", "stop", "endless", CONDUIT_API_TOKEN=READ)
    operator = serving("pipelines", "stop", "endless", "--token-file", "token")

    for done in (without, wrong):
        assert done.returncode == 1
        assert done.stderr.startswith(
            "error: a valid token is needed [access.token_missing]\n  give a valid token with "
        )
        assert "w" * 30 not in done.stderr
    assert serving("pipelines", "list", CONDUIT_API_TOKEN=READ).returncode == 0
    assert reader.returncode == 1
    assert "this needs a token with the role operate [access.refused]" in reader.stderr
    assert (operator.returncode, operator.stdout) == (0, "endless: stopped\n")


@pytest.mark.parametrize(
    ("text", "mode", "answer"),
    [
        ("t" * 30, 0o640, "token file token can be used by others"),
        ("", 0o600, "token file token has no token"),
        (f"read {READ}\noperate {OPERATE}\n", 0o600, "token file token has more than one token"),
        ("schlüssel", 0o600, "token file token holds no token, but other data"),
        (None, 0o600, "token file token cannot be read: No such file or directory"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_not(
    inside: "CommandInside", text: str | None, mode: int, answer: str
) -> None:
    if text is not None:
        inside.write(text, "token").chmod(mode)
    done = inside("pipelines", "list", "--token-file", "token", "--url", f"http://127.0.0.1:{free_port()}")

    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {answer}\n")


def test_a_server_that_is_gone_is_said_to_be(serving: "Serving") -> None:
    serving.add("endless")
    process = serving.start()
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    done = serving("pipelines", "list")
    for_programs = serving("pipelines", "list", "--json")

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: cannot reach a server at {serving.url}: ")
    assert "start one with `conduit-py serve`, or give its address with --url or CONDUIT_URL" in done.stderr
    assert for_programs.returncode == 3
    assert json.loads(for_programs.stdout)["error"]["code"] == "server.unreachable"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_is_trusted_only_when_the_user_says_so(serving: "Serving") -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=here"
    files = "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run([*make.split(), *files.split()], cwd=serving.command.folder, check=True, capture_output=True)
    serving.start("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    stranger = serving("pipelines", "list")
    friend = serving("pipelines", "list", SSL_CERT_FILE=str(serving.command.folder / "cert.pem"))

    assert serving.url.startswith("https://")
    assert stranger.returncode == 3
    assert "certificate verify failed" in stranger.stderr
    assert "give the certificate to trust with --tls-ca or the variable SSL_CERT_FILE" in stranger.stderr
    assert (friend.returncode, friend.stdout) == (0, "the server has no pipelines\n")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_server_that_asks_for_a_certificate_is_shown_one(serving: "Serving") -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=here"
    for name in ("server", "client"):
        files = f"-addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
        subprocess.run([*make.split(), *files.split()], cwd=serving.command.folder, check=True, capture_output=True)
    serving.start("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "client.pem")
    trusting = ("pipelines", "list", "--tls-ca", "server.pem")
    stranger = serving(*trusting)
    friend = serving(*trusting, "--tls-cert", "client.pem", "--tls-key", "client.key")
    by_variables = serving(*trusting, CONDUIT_TLS_CERT="client.pem", CONDUIT_TLS_KEY="client.key")
    wrong_key = serving(*trusting, "--tls-cert", "client.pem", "--tls-key", "server.key")
    no_cert = serving(*trusting, "--tls-key", "client.key")

    assert stranger.returncode == 3
    assert "cannot reach a server" in stranger.stderr
    assert (friend.returncode, friend.stdout) == (0, "the server has no pipelines\n")
    assert by_variables.returncode == 0
    assert wrong_key.stderr.startswith("error: the TLS files cannot be used: ")
    assert no_cert.stderr == "error: --tls-key requires --tls-cert\n  give both or neither\n"


class Stranger(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self) -> None:
        self.send_response(404 if "endless" in self.path else 200)
        self.end_headers()
        self.wfile.write(b"<h1>hello</h1>")

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.parametrize("arguments", [("list",), ("describe", "endless")])
def test_a_server_of_something_else_is_recognised(command: "Command", arguments: tuple[str, ...]) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        done = command("pipelines", *arguments, CONDUIT_URL=url, HTTP_PROXY="http://127.0.0.1:1")
        stranger.shutdown()

    assert done.returncode == 3
    assert done.stderr.startswith(f"error: the server at {url} is not a conduit-py server")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["pipelines", "stop"], "requires an argument"),
        (["pipelines", "sotp", "a"], 'Did you mean "stop"?'),
        (["pipelines", "describe", "a/b"], "1 to 128 letters"),
        (["pipelines", "stop", "a", "--wait", "-1"], "--wait"),
        (["pipelines", "list", "--url", "localhost:8080"], "must be an address such as http://127.0.0.1:8080"),
        (["pipelines", "list", "--url", "http://me:secret@localhost"], "--token-file or CONDUIT_API_TOKEN"),
        (["pipelines", "list", "--token", "x"], "Did you mean --token-file?"),
        (["positions", "set", "a", "s", "no base64"], "give --text if it is the position as it is"),
        (["plugins", "describe", "sink", "file"], '"source", "destination", "processor"'),
    ],
)
def test_wrong_arguments_of_server_commands_end_with_2(
    inside: "CommandInside", capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    with pytest.raises(SystemExit) as exit:
        inside(*arguments)
    stdout, stderr = capsys.readouterr()

    assert exit.value.code == 2
    assert stdout == ""
    assert answer in " ".join(stderr.replace("│", " ").split())


def test_plugins_are_listed_and_described_without_a_server(command: "Command") -> None:
    listed = command("plugins", "list")
    _, [plugins] = command.json("plugins", "list")
    described = command("plugins", "describe", "source", "generator")
    _, [generator] = command.json("plugins", "describe", "source", "generator")
    code, [unknown] = command.json("plugins", "describe", "source", "genrator")

    assert listed.returncode == 0
    names = [[each["kind"], each["name"]] for each in plugins["plugins"]]
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == names
    assert ["source", "generator"] in names
    assert described.returncode == 0
    rate = next(line for line in described.stdout.splitlines() if line.startswith("rate "))
    assert rate.split()[:4] == ["rate", "number", "0", "records"]
    assert generator["options"]["properties"]["rate"]["default"] == 0
    assert code == 1
    assert unknown["error"]["code"] == "plugin.unknown"
    assert "generator" in unknown["error"]["suggestion"]


@pytest.mark.parametrize("command", ["pipelines stop", "positions", "plugins describe", "top"])
def test_help_of_server_commands_imports_nothing_heavy(command: str) -> None:
    script = (
        f"import sys\nfrom conduit_py.cli.main import answer\nassert answer({[*command.split(), '--help']!r}) == 0\n"
        "sys.stderr.write(' '.join(name for name in ('httpx2', 'rich.live', 'pydantic', 'ssl') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout
    assert done.stderr == ""


def test_a_snapshot_is_requested_of_a_running_source(serving: "Serving") -> None:
    serving.add("shop", "Tables()")
    serving.add("endless")
    serving.start()
    for id in ("shop", "endless"):
        serving.until(id, lambda shown: shown["progress"]["acked"])
    done = serving("sources", "snapshot", "shop", "count", "orders", "--where", "id > 3")
    positions = serving.json("positions", "show", "shop")["positions"]
    as_json = serving.json("sources", "snapshot", "shop", "count", "orders")
    wrong = serving("sources", "snapshot", "shop", "count", "order")
    unable = serving("sources", "snapshot", "endless", "count", "orders")

    assert (done.returncode, done.stdout) == (0, "shop: count reads orders as a whole, beside what it reads\n")
    assert positions == {"count": b64encode(b"1 orders id > 3").decode()}
    assert as_json == {"source": "count", "collection": "orders", "durable": True}
    assert wrong.returncode == 1
    assert wrong.stderr == "error: there is no table order [snapshot.refused]\n  tables are orders\n"
    assert unable.returncode == 1
    assert "count does not read snapshots on request [snapshot.refused]" in unable.stderr


def test_completion_is_installed_for_the_shell_at_hand(command: "Command") -> None:
    done = command("--install-completion", HOME=str(command.folder), SHELL="/bin/bash", BASH_VERSION="5")
    scripts = [path for path in command.folder.rglob("*conduit-py*") if path.is_file()]

    assert done.returncode == 0
    assert len(scripts) == 1
    assert "positions" in scripts[0].read_text()


def test_no_color_or_escape_is_written_to_a_file(serving: "Serving") -> None:
    serving.add("broken", destination='Broken(error="red \\x1b[31m and \\n new line")')
    serving.start()
    serving.until("broken", lambda shown: shown["status"] == "degraded")
    text = serving("pipelines", "list").stdout + serving("pipelines", "describe", "broken").stdout

    assert "\x1b" not in text
    assert text.count("red \\x1b[31m and \\n new line") == 2
    assert os.linesep + " new line" not in text

"""The command `quickstart`: a first pipeline, running within a second, and the file to go on from."""

from pathlib import Path
from tempfile import TemporaryDirectory

from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put
from conduit_py.cli.run import run_file
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import EnvironmentUnfit, Problem

RECORDS = 20
PIPELINE = '''\
"""A first pipeline: made-up orders, the smallest left out, printed as JSON lines."""

from conduit_connectors import generator, stdio
from conduit_py import Destination, Pipeline, Record, Source, processor


@processor
def cents(record: Record) -> Record | None:
    """A record goes on, None filters it, a list splits it, an exception refuses it."""
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record if record.payload["cents"] >= 10 else None


shop = generator.Source(count=20, rate=10, fields={"id": "index", "item": "string", "amount": "float"})

orders = Pipeline(
    "orders",
    sources=[Source("shop", shop)],
    processors=[cents],
    destinations=[Destination("screen", stdio.Destination(format="json"))],
)
'''


def quickstart(*, records: int = RECORDS, write: Path | None = None, debug: bool = False) -> ExitCode:
    """Run the first pipeline and keep nothing of it, or write it to a file that does not exist yet."""
    text = PIPELINE.replace(f"count={RECORDS}", f"count={records}")
    if write is not None:
        _write(write, text)
        put(f"wrote {write}; next: conduit-py run {write}")
        return ExitCode.OK
    put(f"{records} made-up orders, 10 a second → in cents, the smallest left out → your screen (Ctrl-C stops)")
    with TemporaryDirectory(prefix="conduit-quickstart-") as folder:
        file = Path(folder, "orders.py")
        file.write_text(text)
        code = run_file(file, state=Path(folder, "state"), debug=debug)
    put(
        "next: conduit-py quickstart --write first.py   the pipeline you just saw, to change\n"
        "      conduit-py check first.py                every mistake at once\n"
        "      conduit-py graph first.py                draws it\n"
        "      conduit-py run first.py                  runs it; a second run goes on where the first ended"
    )
    return code


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        problem = Problem("", "exists already, and is left as it is", "choose another name", str(file))
        raise FileInvalid(file, [problem]) from None
    except OSError as error:
        raise EnvironmentUnfit(f"{file} cannot be written: {error.strerror}") from error

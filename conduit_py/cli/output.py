"""Output: lines on stdout, for people and for programs, whether or not anybody still reads them."""

import json
import os
import sys
from typing import IO, Any


def put(line: str, file: IO[str] | None = None) -> None:
    """Write a line at once: a reader on the other end of a pipe waits for it. One that has left is no error."""
    file = file or sys.stdout
    try:
        file.write(line + "\n")
        file.flush()
    except BrokenPipeError:
        forget_reader(file)


def put_json(fields: dict[str, Any], file: IO[str] | None = None) -> None:
    """Write one JSON object on one line, without secrets."""
    # Imported here: `--help` must not pay for it.
    from conduit_py.config.secrets import redact

    put(redact(json.dumps(fields, ensure_ascii=False)), file)


def forget_reader(file: IO[str]) -> None:
    """Let what follows go nowhere: `| head` must not end a pipeline, nor have Python complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)

"""compile_files: the descriptors of `.proto` texts, compiled by protoc in a process of its own.

A schema is text from elsewhere, and protoc is a program in C++: a limit on its time and memory holds whatever it does.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable

ROOT: Final = "conduit_registered_schema.proto"
_SECONDS_MAX: Final = 60
_PATH: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
# The limits are set by the process itself: a function between fork and exec is not safe beside threads.
_PROGRAM: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))
from importlib.resources import files
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I.", f"-I{files('grpc_tools') / '_proto'}", *sys.argv[1:]]))
"""


def compile_files(schema: RegisteredSchema) -> bytes:
    """Return the set of descriptors of a schema and of all that it imports. Raises SchemaUnusable with the reason."""
    with tempfile.TemporaryDirectory(prefix="conduit-protobuf-") as folder:
        for name, text in [*schema.types, (ROOT, schema.text)]:
            _write(Path(folder), name, text)
        command = [sys.executable, "-I", "-c", _PROGRAM, "--include_imports", "--descriptor_set_out=set", ROOT]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise SchemaUnusable(f"protoc did not compile it within {_SECONDS_MAX} s") from None
        if done.returncode:
            reason = done.stderr.decode(errors="replace").replace(ROOT, "line").strip()
            raise SchemaUnusable(f"it is no Protobuf schema: {reason[:300]}")
        return (Path(folder) / "set").read_bytes()


def _write(folder: Path, name: str, text: str) -> None:
    # The name comes from the registry, and must not lead out of the folder.
    if not _PATH.fullmatch(name) or len(name) > 200:
        raise SchemaUnusable(f"it imports {name[:100]!r}, which is no path of a schema")
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, UnicodeEncodeError) as error:
        raise SchemaUnusable(f"it imports {name[:100]!r}, which cannot be written: {type(error).__name__}") from error

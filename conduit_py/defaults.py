"""Defaults and limits that several parts use: pipelines, the server, the commands and the configuration.

Imports nothing, so that `--help` answers at once. What only one module uses stands in that module.
"""

# Pipelines
BATCH_SIZE = 1024
"""The most records of a source that travel together."""
BATCH_BYTES = 256 * 1024
"""About how many bytes of records travel together: more of them would leave the caches of the processor."""
TABLE_BYTES = 4 * 1024 * 1024
"""About how many bytes of an Arrow table travel together: every batch costs some calls for each of its columns."""
WINDOW = 32_768
"""The most records of a source that are read and not yet settled."""
STATE_CACHE_BYTES = 256 * 1024 * 1024
"""About how many bytes the state of a processor takes in memory; of a larger one, the rest is in the store only."""
STOP_SECONDS = 30.0
"""How long a graceful stop may take, of a pipeline and of a server."""
WORKERS_MAX = 1000
YOUNG_OBJECTS_MAX = 20_000
"""How many new objects the garbage collector waits for. Python's 700 are fewer than those of a batch, or of a start."""
ID_PATTERN = r"[A-Za-z0-9_.:-]+"
PIPELINE_ID_LENGTH_MAX = 128
NODE_ID_LENGTH_MAX = 256

# The server and the commands that call it
HOST = "127.0.0.1"
PORT = 8080
URL = f"http://{HOST}:{PORT}"
STATE_FOLDER = ".conduit"
PROJECT_STATE = f"{STATE_FOLDER}/state"
LETTER_ID_PATTERN = "[a-z2-7]{16}"
LETTERS_LISTED = 100
"""How many dead letters are listed unless a number is given."""
LETTERS_PAGE_MAX = 1000
"""The most dead letters in one answer."""
TAP_RATE = 10
"""How many records a second a tap samples."""
TAP_RATE_MAX = 1000
TAP_LIMIT_MAX = 1_000_000

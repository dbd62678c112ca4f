"""The journal: a durable ordered log with registers, and the message ids that make reading it exactly-once.

Read in this order:

- `message_id.py`: MessageUuid, Flag and Clock: the id of a message: its producer, its time, its transaction.
- `frame.py`, `segment.py`: the bytes of records, frames and segment files, and what is found when they are read.
- `log.py`: Log and LogReader, the interface, and a log in memory; `registers.py`: the registers that fence writers.
- `file_log.py` appends to files under the lock of `disk.py`; `file_reader.py` reads them. `open_last` of
  `segment.py` repairs a torn tail, which the mark in `disk.py` tells from a loss; `audit.py` finds and repairs damage;
  `errors.py` has every error.
- `sequencer.py`: which messages are committed, each once.
- `transactions.py`: the ids of one producer, its claim to write for an owner, and a reader of what is committed.
- `journal.py`: Journal, the face for trio.

docs/explanation/journal.md has the words, the promises and the format.
"""

from typing import TYPE_CHECKING

from conduit_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from conduit_py.journal.file_log import SEGMENT_SIZE, FileLog
    from conduit_py.journal.file_reader import FileReader, JournalFiles
    from conduit_py.journal.frame import decode_bodies, decode_body, encode_body
    from conduit_py.journal.journal import Journal
    from conduit_py.journal.message_id import TICK, Flag, MessageUuid, ProducerId
    from conduit_py.journal.sequencer import HORIZON, NONE, Checkpoint, ProducerState, Sequencer, Slice
    from conduit_py.journal.transactions import CommittedReader, Publisher, WriterClaim

_HOME = {
    "conduit_py.journal.frame": (
        "decode_bodies",
        "decode_body",
        "encode_body",
    ),
    "conduit_py.journal.transactions": (
        "CommittedReader",
        "Publisher",
        "WriterClaim",
    ),
    "conduit_py.journal.file_log": (
        "SEGMENT_SIZE",
        "FileLog",
    ),
    "conduit_py.journal.file_reader": (
        "FileReader",
        "JournalFiles",
    ),
    "conduit_py.journal.journal": ("Journal",),
    "conduit_py.journal.message_id": (
        "TICK",
        "Flag",
        "MessageUuid",
        "ProducerId",
    ),
    "conduit_py.journal.sequencer": (
        "HORIZON",
        "NONE",
        "Checkpoint",
        "ProducerState",
        "Sequencer",
        "Slice",
    ),
}

__all__ = [
    "HORIZON",
    "NONE",
    "SEGMENT_SIZE",
    "TICK",
    "Checkpoint",
    "CommittedReader",
    "FileLog",
    "FileReader",
    "Flag",
    "Journal",
    "JournalFiles",
    "MessageUuid",
    "ProducerId",
    "ProducerState",
    "Publisher",
    "Sequencer",
    "Slice",
    "WriterClaim",
    "decode_bodies",
    "decode_body",
    "encode_body",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)

"""WorkerProcess: a worker of a processor in its own process, for functions that need a core each.

The pool has the WorkerProcess; the process runs the same ProcessorWorker as a thread would, on batches of the record
codec. Only the processor itself is pickled. The second half of this file runs in the process.
"""

import faulthandler
import logging
import math
import os
import pickle
import select
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import trio

from conduit_py import record_codec
from conduit_py.batch import Batch
from conduit_py.errors import ContractBroken, FatalError, RecordRefused, RunError, describe
from conduit_py.owned_process import SEE_LOG, ChildLink, OwnedProcess, ProcessLost, join_owner, pickle_by_value
from conduit_py.payloads import is_payload, to_plain
from conduit_py.pipeline import Processor
from conduit_py.record import DriftCount, Record
from conduit_py.redaction import SECRETS
from conduit_py.sdk.processor import Processor as ProcessorPlugin
from conduit_py.sdk.state import Defer
from conduit_py.stream.plugin_calls import PluginErrors
from conduit_py.stream.processor_calls import finish
from conduit_py.user_errors import as_error
from conduit_py.wire_error import RaisedError, named_type, safe_text

if TYPE_CHECKING:
    from conduit_py.stream.worker import ProcessorWorker

log = logging.getLogger("conduit_py")

LOG_SECONDS = 1.0
PARTS = 4  # of a batch, for each worker
PROGRAM = ("-c", f"from {__name__} import main; main()")


class LoadProcessor(msgspec.Struct, frozen=True, tag=True):
    """To the process: the pickled processor, `sys.path` to import it with, and what it must mask in its texts."""

    node: str
    pickled: bytes
    path: list[str]
    argv: list[str]
    secrets: list[str]


class CloseProcessor(msgspec.Struct, frozen=True, tag=True):
    """To the process: close the processor, and end."""


class ProcessBatch(msgspec.Struct, frozen=True, tag=True):
    """To the process: a batch."""

    batch: record_codec.EncodedBatch


class OtherResult(msgspec.Struct, frozen=True):
    """A result that is no value: an error, a deferral if there is none, or something wrong of the type `wrong`."""

    error: RaisedError | None = None
    wrong: str | None = None

    def decode(self) -> Any:
        if self.wrong is not None:
            return named_type(self.wrong, object)()
        return Defer() if self.error is None else self.error.to_error()


class WorkerAnswer(msgspec.Struct, frozen=True):
    """From the process: a result for each value, or the error of all. A result is encoded, None, a list or another."""

    results: list[bytes | list[bytes] | OtherResult | None] = []
    error: RaisedError | None = None
    drifted: int = 0
    """How much the drift count of the processor grew."""
    together: bytes | None = None
    """All results in one list, in place of `results`, if each is a payload or None and can be encoded so."""


TO_WORKER = msgspec.msgpack.Decoder(LoadProcessor | ProcessBatch | CloseProcessor)
TO_POOL = msgspec.msgpack.Decoder(WorkerAnswer)


class WorkerProcess:
    """A worker of a processor node, with its own processor in its own process.

    As a ProcessorWorker, `run` returns one result per record, in order, errors included as values. A process that was
    lost is a transient error of the batch that it had, and the next batch starts another one. A call that is
    cancelled ends the process: nothing of it goes on.
    """

    state, decodes_into, seconds = None, None, 0.0

    def __init__(self, node: str, number: int, plugin: ProcessorPlugin[Any], pickled: Callable[[], bytes]) -> None:
        self._node = node
        self._name = f"{node}, worker {number}"
        self._pickled = pickled
        self.takes_payloads = plugin.payload_type is not None and not plugin.takes_metadata
        # Of a batch its identities are sent too. A function of one record, or of payloads, never sees them.
        self._whole = (plugin.by_batch and not self.takes_payloads) or plugin.by_table
        self._drift = DriftCount()
        self._process: OwnedProcess[WorkerAnswer] | None = None
        self._loaded = self._broken = False

    def start(self) -> None:
        """Start the process, without waiting for it: several of them can start side by side."""
        try:
            self._process = OwnedProcess(self._name, PROGRAM, TO_POOL)
        except OSError as error:
            raise ProcessLost(f"{self._name}: no process can be started: {error.strerror or error}") from error
        self._loaded = self._broken = False
        # Not in a nursery: it ends with the process, and `close` leaves none.
        trio.lowlevel.spawn_system_task(self._process.relay_log)

    async def open(self) -> DriftCount | None:
        with PluginErrors(self._node, "open"):
            await self._load()
        return self._drift

    async def _load(self) -> None:
        if self._process is None:
            self.start()
        self._loaded = True
        await self._ask(LoadProcessor(self._node, self._pickled(), sys.path, sys.argv, sorted(SECRETS.values)))

    async def run(self, batch: Batch) -> list[Any]:
        if self._process is None or self._broken:
            await self._start_again()
        if not self.takes_payloads:
            # Asked of this batch: that it holds records says what the results mean.
            _ = batch.records
        try:
            message = ProcessBatch(record_codec.EncodedBatch.of(batch, identities=self._whole))
        except RecordRefused as error:
            return await self._run_apart(batch, error)
        answer = await self._ask(message)
        decode = record_codec.decode_record if batch.holds_records else record_codec.decode_payload
        together = answer.together and record_codec.decode_payload(answer.together)
        results: list[Any] = together or [_decode_result(each, decode) for each in answer.results]
        if len(results) != len(batch):
            raise ContractBroken(self._node, f"returned {len(results)} results for {len(batch)} records")
        return results

    async def _start_again(self) -> None:
        await self.close([])
        try:
            await self._load()
        except Exception:
            # Its processor is not open, so the next attempt begins with another process.
            await self.close([])
            raise

    async def _run_apart(self, batch: Batch, error: RecordRefused) -> list[Any]:
        """The results of a batch in which some record cannot be encoded: that one is refused, the others are not."""
        if len(batch) == 1:
            return [error]
        halves = range(len(batch) // 2), range(len(batch) // 2, len(batch))
        return [result for half in halves for result in await self.run(batch.select(half))]

    async def _ask(self, message: LoadProcessor | ProcessBatch | CloseProcessor) -> WorkerAnswer:
        process, answer = self._process, None
        assert process is not None
        try:
            # Not shielded: a process that was stopped (SIGSTOP) reads nothing, and must not hold up a forceful stop.
            await process.link.send(message, shield=False)
            answer = await process.link.receive()
        except trio.BrokenResourceError:
            log.debug("%s: the process ended before a message was sent", self._name)
        except BaseException:
            # A later answer would be taken for that of the next message.
            self._broken = True
            process.kill()
            raise
        if answer is None:
            raise await self._lose(process)
        self._drift.count += answer.drifted
        if answer.error is not None:
            raise answer.error.to_error()
        return answer

    async def _lose(self, process: OwnedProcess[WorkerAnswer]) -> ProcessLost:
        self._process = None
        await process.reap()
        with trio.move_on_after(LOG_SECONDS):
            await process.log_ended.wait()
        error = ProcessLost(f"{self._name}: its process {process.describe_end()}", suggestion=SEE_LOG)
        # Also if the retries of the node make it good: somebody may be short of memory.
        log.error("%s (process %d)", error.message, process.pid)
        return error

    async def close(self, errors: list[RunError]) -> None:
        """Close the processor and end the process. An error is added to `errors`."""
        if (process := self._process) is None:
            return
        try:
            with PluginErrors(self._node, "close"):
                if self._loaded and not self._broken:
                    await self._ask(CloseProcessor())
                else:
                    process.kill()
        except RunError as error:
            errors.append(error)
        finally:
            if self._process is not None:
                self._process = None
                await process.reap()


def worker_processes(node: str, declared: Processor) -> list[WorkerProcess]:
    """The workers of a processor that runs in processes, none of them started."""
    plugin, pickled = declared.processor, cache(lambda: _pickle(declared))
    assert plugin is not None
    return [WorkerProcess(node, number, plugin, pickled) for number in range(1, declared.workers + 1)]


def _pickle(declared: Processor) -> bytes:
    try:
        return pickle_by_value(declared.processor, declared.files)
    except Exception as error:  # a plugin boundary: the user's objects run code when they are pickled
        raise FatalError(f"cannot be sent to a process: {describe(error)}") from error


def _decode_result(result: Any, decode: Callable[[bytes], Any]) -> Any:
    if type(result) is bytes:
        return decode(result)
    if type(result) is list:
        return [decode(each) for each in result]
    return result.decode() if isinstance(result, OtherResult) else result


# Everything below runs in the process.


def main() -> NoReturn:
    """The program of the process."""
    connected = join_owner()
    # A crash of the interpreter leaves the line of the user's function in the log.
    faulthandler.enable(all_threads=False)
    threading.Thread(target=_end_with, args=(connected.fileno(),), name="conduit-owner", daemon=True).start()
    trio.run(_serve, connected)
    # Not sys.exit, which would wait for threads of the user's code.
    sys.stdout.flush()
    os._exit(0)


def _end_with(descriptor: int) -> None:
    """End this process when its owner is gone, also on systems whose kernel does not, and while a call computes."""
    waiting = select.poll()
    # Nothing but the end of the connection: what arrives is read elsewhere.
    waiting.register(descriptor, 0)
    waiting.poll()
    os._exit(1)


async def _serve(connected: socket.socket) -> None:
    connected.setblocking(False)
    host, link = _WorkerHost(), ChildLink(trio.SocketStream(trio.socket.from_stdlib_socket(connected)), TO_WORKER)
    while (message := await link.receive()) is not None:
        await link.send(await host.answer(message))
        if isinstance(message, CloseProcessor):
            return
    os._exit(1)


class _WorkerHost:
    """The worker in this process."""

    def __init__(self) -> None:
        self._worker: ProcessorWorker | None = None
        self._drift, self._reported = DriftCount(), 0

    async def answer(self, message: LoadProcessor | ProcessBatch | CloseProcessor) -> WorkerAnswer:
        try:
            if isinstance(message, LoadProcessor):
                await self._load(message)
            elif isinstance(message, ProcessBatch):
                return await self._process(message)
            elif self._worker is not None:
                errors: list[RunError] = []
                await self._worker.close(errors)
                if errors:
                    raise errors[0]
            return WorkerAnswer()
        except BaseException as error:  # plugin boundary: the processor is the user's
            return WorkerAnswer(error=RaisedError.of(as_error(error)))

    async def _load(self, message: LoadProcessor) -> None:
        # Imported only here: the pool imports this file.
        from conduit_py.stream.worker import ProcessorWorker

        SECRETS.add(*message.secrets)
        # Before anything is unpickled: the modules of the user are found as the pool finds them.
        sys.path[:], sys.argv[:] = message.path, message.argv
        try:
            processor: ProcessorPlugin[Any] = pickle.loads(message.pickled)  # noqa: S301 - our own pool sent it
        except Exception as error:  # a plugin boundary: the user's code is loaded
            raise FatalError(f"it cannot be loaded in a worker process: {describe(error)}") from error
        self._worker = ProcessorWorker(message.node, processor.fresh())
        # Nothing else waits for this event loop: no call is too slow for it.
        self._worker.stay.slow_seconds = math.inf
        self._drift = await self._worker.open() or self._drift

    async def _process(self, message: ProcessBatch) -> WorkerAnswer:
        assert self._worker is not None
        batch = message.batch.decode()
        results = await finish(self._worker.run(batch))
        drifted, self._reported = self._drift.count - self._reported, self._drift.count
        if not batch.holds_records and (together := record_codec.encode_all(results)) is not None:
            return WorkerAnswer(drifted=drifted, together=together)
        return WorkerAnswer([_encode_result(each, batch.holds_records) for each in results], drifted=drifted)


def _encode_result(result: Any, in_records: bool) -> bytes | list[bytes] | OtherResult | None:
    try:
        if result is None:
            return None
        if isinstance(result, list):
            return [_encode_value(each, in_records) for each in result]
        if not isinstance(result, Exception):
            return _encode_value(result, in_records)
        # Thousands of records may be refused, and only a log of details shows their tracebacks.
        debug = log.isEnabledFor(logging.DEBUG)
        return OtherResult(None if isinstance(result, Defer) else RaisedError.of(result, trace=debug))
    except RecordRefused as error:
        return OtherResult(RaisedError.of(error))
    except _WrongType as wrong:
        return OtherResult(wrong=safe_text(str(wrong)))


def _encode_value(value: Any, in_records: bool) -> bytes:
    if type(value) is Record and in_records:
        return record_codec.encode_record(value)
    if is_payload(type(value)) and not in_records:
        return record_codec.encode_payload(to_plain(value))
    raise _WrongType(type(value).__name__)


class _WrongType(TypeError):
    """A value of a type that cannot leave a processor."""

"""The public face: which modules and names others may rely on, and that everything of ours outside uses only those."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# To add a name is to promise it; to remove one breaks a user and belongs in docs/how-to/upgrade.md.
FACE = {
    "conduit_py": """
        Batch ConduitError DeadLetter DeadLetters DeadLettersFound Defer Destination FatalError Fate KeptDeadLetter
        MessageId NodeCounts Operation Payload Pipeline PipelineInvalid Processor processor Record RecordRefused
        RateLimit Recovery Retention Retry Rows run run_async RunCounts running RunningPipeline RunOutcome secret Source
        Spark State Status TransactionLimits TransientError
    """,
    "conduit_py.client": """
        Api ApiCall AsyncClient Client DroppedEvent FleetEvent LetterSelection PipelineEvent RecordEvent ServerRefused
        ServerUnreachable Stream
    """,
    "conduit_py.sdk": """
        AckMode Answer Batch CheckpointedSource CollectionSchema Columns ConduitError Data Dataset decode_json
        decode_payload Defer DestinationConnector DriftCount DuplicateKeys encode_json encode_payload EncodedPositions
        EndOfSource EndpointSource FatalError Fate FateHandler Fenced Fetched FieldType foreign_position HttpAnswer
        HttpRequest is_too_deep JSON_DEPTH_MAX KeptOrder
        Lag LazyColumn ManyWriterDestination MapPositions may_repeat_keys MessageId metadata NothingYet
        Operation Options PartId Payload Payloads PieceRefused PositionMap Positions PreparingDestination Processor
        processor QueueCounts Reading Record RecordRefused Records Result Rows SchemaField SecretProvider
        SecretUnavailable SnapshotRefused SnapshotRequest SourceCheckpoint SourceConnector SplittableSource
        StageCleared StagedDestination State Structured TransactionalDestination TransientError Unchanged
        UnreadableRecord WriteGuarantee
    """,
    "conduit_py.sdk.arrow": """
        ARROW_ERRORS check_values columns fit_to_schema FittedRows infer_schema misfit_reason NoCommonSchema python_rows
        rows_of select_columns values_of
    """,
    "conduit_py.sdk.queue": """
        LeasedQueue LeaseTerms ObjectOpener ObjectRecord QueueArguments QueueDelivery QueueOptions QueueSource
    """,
    "conduit_py.sdk.spark": """
        BadRows error_text is_definition_error JobCancelled JobGroup spark_errors SparkArguments SparkConnector
        SparkOptions
    """,
    "conduit_py.sdk.template": """
        CelCondition condition_of condition_option
        field_path_error FieldPath is_template kind_of option_error RecordPart split_outside_quotes Template
        TemplateCondition TemplateInvalid text_of TextOption
    """,
    "conduit_py.testing": """
        AnswerUnknown AwaitFlush Block CrashReport CrashTestFailed Delay destination_acceptance durable
        EmptyPosition Event EventLog Fail FakeKeyedDestination FakeStagedDestination FakeStorage
        FakeTransactionalDestination FaultPoint FaultyRun Idle InGroup number_of numbered_record ObservedRun OnAck
        OnAnswer OnFlush OutageStore position_of ReceivedRecord Refuse RefuseOutside rehearse RepeatAnswer
        RepeatPosition ReturnNothing ReturnTooMany run_to_end run_with_kills run_with_outage ScriptedDestination
        ScriptedSource ScriptStep simulate simulated SimulationStuck source_acceptance StoppableSource WithProgress
    """,
    "conduit_py.testing.cdc": """
        CdcApplied CdcCheckFailed CdcCopy CdcDatabase CdcReport check_cdc
    """,
    "conduit_py.journal": """
        Checkpoint CommittedReader decode_bodies decode_body encode_body FileLog FileReader Flag HORIZON Journal
        JournalFiles MessageUuid NONE ProducerId ProducerState Publisher SEGMENT_SIZE Sequencer Slice TICK
        WriterClaim
    """,
    "conduit_py.idempotency": """
        AsyncMessageTracker handle_once handle_once_async Idempotency KeyBusy MemoryTracker MessageContext
        MessageTracker open_store RecentKeys REPEATED SeenKeys SqlAlchemyTracker store_transaction StoreTracker
        StoreTransaction
    """,
    "conduit_py.outbox": """
        Forwarder Outbox OutboxMessage SqlAlchemyOutbox TargetFailure
    """,
    "conduit_py.steps": """
        Message open_steps Process Queue QueueMetadata Queues Step StepGraph StepKind Tailer
    """,
    "conduit_py.spark": """
        DataSource
    """,
}


@pytest.mark.parametrize("module", FACE)
def test_a_public_module_has_exactly_the_names_that_are_promised(module: str) -> None:
    found = importlib.import_module(module)

    assert sorted(found.__all__) == sorted(FACE[module].split())
    missing = [name for name in found.__all__ if not hasattr(found, name)]
    assert missing == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    for module in FACE:
        with pytest.raises(AttributeError):
            importlib.import_module(module).no_such_name  # noqa: B018


def _code() -> Iterator[tuple[Path, str]]:
    for folder in ("connectors", "processors", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text()
    for path in [ROOT / "README.md", ROOT / "connectors" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path, "\n".join(BLOCK.findall(path.read_text()))


def _imported_modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                # `from conduit_py import sdk` imports a module.
                yield full if full in FACE or _is_module(full) else node.module


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_connectors_processors_examples_and_docs_import_public_modules_only() -> None:
    private = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, text in _code()
        for module in _imported_modules(text)
        if module.split(".")[0] == "conduit_py" and module not in FACE
    ]

    assert private == []

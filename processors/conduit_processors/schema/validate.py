"""`schema.validate` checks records against a schema, and has a policy for those that drift from it."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypedDict, Unpack

from pydantic import Field, model_validator

from conduit_processors.avro.codec import parse
from conduit_processors.field_processor import FieldOptions, Structurable
from conduit_processors.jsonschema.guard import GuardedValidator
from conduit_processors.registry.client import SchemaUnusable
from conduit_processors.schema.quick_check import QuickCheck, quick_check
from conduit_processors.schema.shape import (
    Shape,
    change_for,
    merge,
    require_object,
    shape_of_avro,
    shape_of_collection,
    shape_of_value,
)
from conduit_py.sdk import (
    Batch,
    CollectionSchema,
    DriftCount,
    FatalError,
    Processor,
    Record,
    RecordRefused,
    Result,
    metadata,
)
from conduit_py.sdk.template import FieldPath, kind_of, option_error

log = logging.getLogger("conduit_py.schema")

DRIFT: Final = "schema.drift"
CHANGES_MAX: Final = 200
COLLECTIONS_MAX: Final = 1000
_SHOWN_MAX: Final = 5

Against = Literal["file", "announced", "inferred"]
DriftPolicy = Literal["stop", "dead-letter", "pass", "evolve"]


class ValidateOptions(FieldOptions):
    """Options of schema.validate."""

    field: Structurable = Field(default=FieldPath.of(".Payload.After"), description="what to check")
    against: Against = Field(
        default="file",
        description="file: schema_file; announced: what the source says of the collection; inferred: the first records",
    )
    schema_file: Path | None = Field(
        default=None, description="the schema, for against='file': Avro if the name ends in .avsc, else JSON Schema"
    )
    on_drift: DriftPolicy = Field(
        default="dead-letter",
        description="stop the pipeline, refuse the record, let it pass with metadata, or change the schema",
    )
    sample_size: int = Field(
        default=100, ge=1, description="how many records of a collection the schema is inferred from"
    )

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        if (self.against == "file") != (self.schema_file is not None):
            raise option_error("schema_file goes with against='file', and with nothing else")
        return self


class ValidateArguments(TypedDict, total=False):
    """ValidateOptions as a caller writes them, for editors and type checkers."""

    field: str | FieldPath
    against: Against
    schema_file: str | Path | None
    on_drift: DriftPolicy
    sample_size: int


class Validate(Processor[ValidateOptions]):
    """Lets records pass that fit their schema. Absent values pass.

    Drift is logged once for each change. `pass` sets the metadata `schema.drift`. `evolve` adds fields and types,
    and makes missing fields optional, for the rest of the run; what it cannot change is refused. A schema that is
    announced is the first of the run for each collection.
    """

    blocking = False
    requires: ClassVar = {"jsonschema": "conduit-dataflow[jsonschema]"}

    def __init__(self, **options: Unpack[ValidateArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._get = self.options.field.get
        self.drift_count = self._drift = DriftCount()
        self._changes: dict[str, None] = {}
        self._collections: dict[str, _Baseline] = {}
        self._file: _Baseline | None = None
        path = self.options.schema_file
        if path is not None:
            try:
                self._file = _read(path)
            except (OSError, UnicodeDecodeError, SchemaUnusable) as error:
                raise FatalError(f"{path} cannot be used: {error}", suggestion="check schema_file") from error

    def process_batch(self, batch: Batch) -> Sequence[Result]:
        results: list[Result] = []
        for index, record in enumerate(batch.records):
            try:
                value = self._get(record)
                if value is not None:
                    self._check(record, value, batch, index)
                results.append(record)
            except FatalError:
                raise
            except RecordRefused as refused:
                results.append(refused)
            except Exception as error:  # the library met a value that its author did not expect
                results.append(error)
        return results

    def _check(self, record: Record, value: Any, batch: Batch, index: int) -> None:
        announced = batch.schema(index) if self.options.against == "announced" else None
        baseline = self._file or self._baseline(record, announced)
        if not baseline.learn(value) or (baseline.fits(value) and not baseline.gone(announced)):
            return
        try:
            errors = baseline.validator.errors(value)
        except RecordRefused as refused:
            raise RecordRefused(f"{self.options.field}: {refused.message}") from refused
        # Each once: a value with three missing fields has three errors, which say the same.
        drift = list(dict.fromkeys([*baseline.gone(announced), *map(_describe, errors)]))
        if drift:
            self._on_drift(record, baseline, errors, announced, drift)

    def _baseline(self, record: Record, announced: CollectionSchema | None) -> "_Baseline":
        collection = record.metadata.get(metadata.COLLECTION, "")
        baseline = self._collections.get(collection)
        if baseline is None:
            if len(self._collections) >= COLLECTIONS_MAX:
                raise RecordRefused(f"is of a collection beyond {COLLECTIONS_MAX}, whose schemas are not kept")
            if self.options.against == "inferred":
                baseline = _Baseline(None, samples=self.options.sample_size)
            elif announced is None:
                hint = "choose against='inferred', or give a schema_file"
                raise RecordRefused(
                    f"has no schema: its source announces none of {collection[:100]!r}", suggestion=hint
                )
            else:
                baseline = _Baseline(shape_of_collection(announced), announced=announced)
            self._collections[collection] = baseline
        return baseline

    def _on_drift(
        self,
        record: Record,
        baseline: "_Baseline",
        errors: list[Any],
        announced: CollectionSchema | None,
        drift: list[str],
    ) -> None:
        self._drift.count += 1
        policy, text = self.options.on_drift, "; ".join(drift[:_SHOWN_MAX])
        what = f"{self.options.field} drifts from its schema: {text}"
        for each in drift:
            self._log_once(record, each)
        if policy == "pass":
            record.metadata[DRIFT] = text[:1000]
        elif policy == "stop":
            raise FatalError(f"a record has drifted: {what}", suggestion="change the schema, or on_drift")
        elif policy == "dead-letter" or not baseline.evolve(errors, announced):
            raise RecordRefused(what)

    def _log_once(self, record: Record, drift: str) -> None:
        collection = record.metadata.get(metadata.COLLECTION, "")
        change = f"{collection[:100]!r}: {drift[:300]}"
        if change not in self._changes and len(self._changes) < CHANGES_MAX:
            self._changes[change] = None
            log.warning("schema drift (%s) in collection %s", self.options.on_drift, change)


class _Baseline:
    """The schema of one collection, and the validator that is made of it."""

    def __init__(
        self,
        shape: Shape | None,
        *,
        strict: bool = True,
        samples: int = 0,
        announced: CollectionSchema | None = None,
    ) -> None:
        self._shape, self._strict, self._samples, self._announced = shape, strict, samples, announced
        self._changes = 0
        if shape is not None:
            self._use(shape, sound=False)

    def _use(self, shape: Shape, *, sound: bool) -> None:
        self._shape = shape
        self.validator = GuardedValidator(shape, strict=self._strict, sound=sound)
        # The types of JSON have values of many types here, which only the validator tells apart.
        self.fits: QuickCheck = quick_check(shape) if self._strict else lambda _: False

    def learn(self, value: Any) -> bool:
        """Return True if the value is to be checked, False if it is one of those that the schema is inferred from."""
        if not self._samples:
            return True
        shape = shape_of_value(value)
        if self._shape is None:
            self._shape = shape
        else:
            merge(self._shape, shape)
        self._samples -= 1
        if not self._samples:
            self._use(self._shape, sound=True)
        return False

    def gone(self, announced: CollectionSchema | None) -> list[str]:
        """Return what the source has announced since as removed, which no record shows."""
        if announced is None or self._announced is None or announced.version == self._announced.version:
            return []
        names = {field.name for field in announced.fields}
        return [
            f"the field {field.name[:100]!r} is gone" for field in self._announced.fields if field.name not in names
        ]

    def evolve(self, errors: list[Any], announced: CollectionSchema | None) -> bool:
        """Change the schema so that it takes the value with these errors; return False if it cannot."""
        assert self._shape is not None
        # Bounded: records could have a new field each, for ever.
        if self._changes >= CHANGES_MAX:
            return False
        changed = json.loads(json.dumps(self._shape))
        if not all(change_for(changed, error, strict=self._strict) for error in errors):
            return False
        self._changes += 1
        self._announced = announced
        self._use(changed, sound=True)
        return True


def _read(path: Path) -> _Baseline:
    text = path.read_text()
    if path.suffix == ".avsc":
        return _Baseline(shape_of_avro(parse(text)))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaUnusable(f"it is no JSON: {error}") from error
    return _Baseline(require_object(schema), strict=False)


def _describe(error: Any) -> str:
    """What is wrong, without the value: it goes into logs."""
    path = ".".join(str(step) for step in error.absolute_path if not isinstance(step, int))
    where = f"the field {path[:200]!r}" if path else "it"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        names = [f"{path}.{name}" if path else name for name in missing]
        return f"the field {', '.join(map(repr, names))[:200]} is missing"
    if error.validator == "additionalProperties":
        return f"{where} {error.message}"
    if error.validator == "type":
        kinds = error.validator_value
        wanted = ", ".join(kinds) if isinstance(kinds, list) else str(kinds)
        found = "null" if error.instance is None else kind_of(error.instance)
        return f"{where} is {found} and not of the type {wanted}"
    return f"{where} does not fit {error.validator!r}"

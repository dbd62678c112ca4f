"""Options of processors that use a schema registry: where it is, who asks, and which subject a schema has."""

from pathlib import Path
from typing import Annotated, Literal, Self, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, SecretStr, model_validator

from conduit_processors.field_processor import FieldOptions, Structurable
from conduit_py.sdk.template import FieldPath, Template, option_error


def _registry_url(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not separator or not host:
        raise option_error("must be the address of a registry", "write it as http://host:port")
    if "@" in host:
        raise option_error("must not contain a password", "give username and password")
    return value.rstrip("/")


class RegistryOptions(FieldOptions):
    """What every processor with a schema registry takes."""

    field: Structurable = Field(
        default=FieldPath.of(".Payload.After"),
        description="what to encode or decode: .Key, .Payload.Before, .Payload.After or a field",
    )
    url: Annotated[str, AfterValidator(_registry_url)] = Field(
        description="the registry, as http://host:port; with Apicurio /apis/ccompat/v7 behind it"
    )
    username: str | None = Field(default=None, min_length=1, description="the user, for basic authentication")
    password: SecretStr | None = Field(default=None, description="the password of the user")
    token: SecretStr | None = Field(default=None, description="a token, for bearer authentication")
    ca_file: Path | None = Field(default=None, description="certificates to trust, in PEM; None: those of the machine")
    cert_file: Path | None = Field(default=None, description="the client's certificate, in PEM")
    key_file: Path | None = Field(default=None, description="the key of the client's certificate, in PEM")
    timeout_seconds: float = Field(default=10.0, gt=0, description="how long one request may take")
    retry_seconds: float = Field(
        default=60.0, ge=0, description="how long to try again in place; then the pipeline recovers with back-off"
    )

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise option_error("basic authentication needs username and password")
        if self.token is not None and self.username is not None:
            raise option_error("authentication is by username and password, or by token, not by both")
        if (self.cert_file is None) != (self.key_file is None):
            raise option_error("a client's certificate needs cert_file and key_file")
        return self


class RegistryArguments(TypedDict, total=False):
    """RegistryOptions as a caller writes them, for editors and type checkers; `url` is required."""

    field: str | FieldPath
    username: str | None
    password: str | SecretStr | None
    token: str | SecretStr | None
    ca_file: str | Path | None
    cert_file: str | Path | None
    key_file: str | Path | None
    timeout_seconds: float
    retry_seconds: float


class SchemaReference(BaseModel):
    """A schema that another one uses: what that calls it, and where the registry has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="the name of the type in Avro, the path of the import in Protobuf")
    subject: str = Field(min_length=1, description="the subject of the schema")
    version: PositiveInt = Field(description="the version of the schema")


SubjectStrategy = Literal["topic", "record", "topic-record"]
SchemaStrategy = Literal["preRegistered", "autoRegister"]


class RegistryEncodeOptions(RegistryOptions):
    """What every processor takes that encodes with a registered schema."""

    strategy: SchemaStrategy = Field(
        default="preRegistered",
        description="preRegistered: use a schema of the registry; autoRegister: add the schema to the registry",
    )
    subject: str | None = Field(
        default=None, min_length=1, description="the subject; None: made by subject_strategy for each record"
    )
    version: PositiveInt | Literal["latest"] = Field(
        default="latest", description="the version to use with preRegistered; latest: as of the first record of a run"
    )
    subject_strategy: SubjectStrategy = Field(
        default="topic",
        description="topic: TOPIC-key or TOPIC-value; record: the name of the record; topic-record: TOPIC-NAME",
    )
    topic: Template | None = Field(
        default=None, description="the topic, a template; None: opencdc.collection of the record"
    )
    record_name: str | None = Field(
        default=None, min_length=1, description="the name of the record, where no schema_file has it"
    )
    schema_file: Path | None = Field(default=None, description="the schema; None: that of the subject")
    references: tuple[SchemaReference, ...] = Field(
        default=(), description="the registered schemas that the schema in schema_file uses"
    )

    @model_validator(mode="after")
    def _check_subject(self) -> Self:
        named = self.record_name is not None or self.schema_file is not None
        if self.subject is None and self.subject_strategy != "topic" and not named:
            raise option_error(
                f"subject_strategy {self.subject_strategy!r} needs the name of the record",
                "give record_name, or schema_file",
            )
        if self.version != "latest" and (self.strategy == "autoRegister" or self.schema_file is not None):
            raise option_error("version is for a schema of the registry", "leave out version, or schema_file")
        if self.references and self.schema_file is None:
            raise option_error("references are those of the schema in schema_file", "give schema_file")
        return self


class RegistryEncodeArguments(RegistryArguments, total=False):
    """RegistryEncodeOptions as a caller writes them, for editors and type checkers; `url` is required."""

    strategy: SchemaStrategy
    subject: str | None
    version: int | Literal["latest"]
    subject_strategy: SubjectStrategy
    topic: str | Template | None
    record_name: str | None
    schema_file: str | Path | None
    references: list[SchemaReference] | list[dict[str, str | int]]

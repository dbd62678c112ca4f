"""The options of the file source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Required, TypedDict

from pydantic import Field, model_validator

from conduit_connectors.compression import CompressionOption, compression_of
from conduit_connectors.file.csv_format import Delimiter, Names
from conduit_connectors.line_formats import LineFormat
from conduit_connectors.lines import LINE_SIZE_MAX
from conduit_py.sdk import DuplicateKeys, Options


class SourceOptions(Options):
    """Options of the file source."""

    path: Path = Field(description="the file to read, or several, as in/*.csv")
    format: LineFormat = Field(
        default="lines",
        description="what a line is: raw bytes, a JSON object, a CSV row, or a whole record in OpenCDC's JSON form",
    )
    compression: CompressionOption = Field(default="auto", description='how it is compressed; "auto": by its name')
    tail: bool = Field(default=False, description="wait for more at the end of the file, and follow its rotation")
    on_replaced: Literal["refuse", "reread"] = Field(
        default="refuse",
        description="what to do, without tail, when the file is another one than the last run read: "
        "refuse to run, or read it from its start",
    )
    line_size_max: int = Field(default=LINE_SIZE_MAX, ge=1, description="the most bytes of a line, or of a CSV row")
    duplicate_keys: DuplicateKeys = Field(
        default="refuse",
        description="what to do with a JSON object that has a key twice: refuse the line, or keep the last value",
    )
    delimiter: Delimiter = ","
    header: Names | None = Field(default=None, description="the columns of a CSV file; None: its first row names them")

    @model_validator(mode="after")
    def _tail_is_for_one_growing_file(self) -> "SourceOptions":
        compressed = self.compression != "none" and (self.compression != "auto" or compression_of(str(self.path)))
        if self.tail and compressed:
            raise ValueError("tail goes with a file that grows, which a compressed one does not")
        return self

    @model_validator(mode="after")
    def _replacement_is_for_whole_files(self) -> "SourceOptions":
        if self.tail and self.on_replaced != "refuse":
            raise ValueError("on_replaced goes with tail=False: a file that is tailed is followed when it is rotated")
        return self

    @model_validator(mode="after")
    def _duplicate_keys_are_for_json(self) -> "SourceOptions":
        if self.duplicate_keys != "refuse" and self.format not in ("json", "opencdc"):
            raise ValueError(f'duplicate_keys goes with format="json" or "opencdc", not {self.format!r}')
        return self

    @model_validator(mode="after")
    def _header_is_for_csv(self) -> "SourceOptions":
        if self.header is not None and self.format != "csv":
            raise ValueError(f'header goes with format="csv", not {self.format!r}')
        return self


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    format: LineFormat
    compression: CompressionOption
    tail: bool
    on_replaced: Literal["refuse", "reread"]
    line_size_max: int
    duplicate_keys: DuplicateKeys
    delimiter: str
    header: Sequence[str] | None

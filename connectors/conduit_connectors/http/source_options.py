"""SourceOptions: which API is polled, how its pages follow each other, and what is new."""

from collections.abc import Mapping
from typing import Literal, Required

from pydantic import Field, model_validator

from conduit_connectors.http.connection_options import ConnectionArguments, ConnectionOptions, HttpUrl
from conduit_connectors.http.json_path import JsonPath
from conduit_py.sdk.template import option_error

Paging = Literal["none", "cursor", "page", "offset", "link"]
BodyFormat = Literal["auto", "json", "jsonl"]


class SourceOptions(ConnectionOptions):
    """Which API, how its pages follow each other, and what is new."""

    url: HttpUrl = Field(description="the list to read, with GET")
    params: dict[str, str | int | float] = Field(
        default={}, description="parameters of every request, such as the size of a page"
    )
    format: BodyFormat = Field(default="auto", description="JSON, or JSON lines; `auto` goes by the content type")
    records: JsonPath = Field(default=JsonPath("$"), description="where the records are in a page, such as data.items")
    records_optional: bool = Field(
        default=False, description="whether a page without anything at `records` is an empty page, not an error"
    )
    key_field: str | None = Field(default=None, description="the field that becomes the key of a record")
    duplicate_keys: Literal["refuse", "last"] = Field(
        default="refuse",
        description="what to do with an object that has a key twice: refuse it, or take the last value",
    )
    paging: Paging = Field(default="none", description="what leads to the next page")
    cursor_path: JsonPath | None = Field(default=None, description="where a page has the cursor of the next one")
    cursor_param: str = Field(default="cursor", description="the parameter that takes the cursor")
    page_param: str = Field(default="page", description="the parameter that takes the number of a page")
    first_page: int = Field(default=1, ge=0, description="the number of the first page")
    offset_param: str = Field(default="offset", description="the parameter that takes the number of records to skip")
    since_param: str | None = Field(
        default=None, description="the parameter by which the API gives only what is new, such as updated_since"
    )
    since_path: JsonPath | None = Field(
        default=None, description="where a record has the value for it: its highest value is where the next pass begins"
    )
    since_start: str | int | float | None = Field(default=None, description="the value for the first pass")
    poll_seconds: float | None = Field(
        default=None, gt=0, description="how long to wait after a pass before the next; without it one pass is made"
    )

    @model_validator(mode="after")
    def _check_paging(self) -> "SourceOptions":
        if (self.paging == "cursor") != (self.cursor_path is not None):
            raise option_error('must have cursor_path with paging="cursor", and not without')
        if (self.since_param is None) != (self.since_path is None):
            raise option_error("must have since_param and since_path, or neither")
        if self.since_start is not None and self.since_param is None:
            raise option_error("has since_start without since_param")
        return self


class SourceArguments(ConnectionArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    params: Mapping[str, str | int | float]
    format: BodyFormat
    records: str | JsonPath
    records_optional: bool
    key_field: str | None
    duplicate_keys: Literal["refuse", "last"]
    paging: Paging
    cursor_path: str | JsonPath | None
    cursor_param: str
    page_param: str
    first_page: int
    offset_param: str
    since_param: str | None
    since_path: str | JsonPath | None
    since_start: str | int | float | None
    poll_seconds: float | None

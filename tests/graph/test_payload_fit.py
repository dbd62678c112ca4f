"""Two types of payload: which pairs can never fit, and why. A pair that may fit is never reported."""

import dataclasses
import typing
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from conduit_py import Record
from conduit_py.payload_fit import misfits


class Order(msgspec.Struct):
    id: int
    amount: float


class OrderWithNote(msgspec.Struct):
    id: int
    amount: float
    note: str | None = None


class Invoice(msgspec.Struct):
    id: int
    amount: float
    cents: int


class OrderText(msgspec.Struct):
    id: str
    amount: float


@dataclasses.dataclass
class OrderClass:
    id: int
    amount: float


class OrderModel(pydantic.BaseModel):
    id: int
    amount: float


class InvoiceModel(pydantic.BaseModel):
    id: int
    amount: float
    cents: int


class OpenModel(pydantic.BaseModel, extra="allow"):
    id: int


class LenientModel(pydantic.BaseModel, extra="ignore"):
    id: str = ""


class TextModel(pydantic.BaseModel):
    id: str
    amount: float


class NumberModel(pydantic.BaseModel):
    id: int
    amount: float


class BeforeModel(pydantic.BaseModel):
    cents: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def _made(cls, values: Any) -> Any:
        return {"cents": 1}


class AfterModel(pydantic.BaseModel):
    cents: int

    @pydantic.model_validator(mode="after")
    def _checked(self) -> "AfterModel":
        return self


class ChoiceModel(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias=pydantic.AliasChoices("id", "nr"))
    amount: float


class AliasModel(pydantic.BaseModel):
    number: int = pydantic.Field(alias="id")
    amount: float


class ComputedModel(pydantic.BaseModel):
    id: int
    amount: float

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def cents(self) -> int:
        return 1


class OwnInitModel(pydantic.BaseModel):
    cents: int

    def __init__(self, **values: Any) -> None:
        super().__init__(cents=1)


class OrderDict(TypedDict):
    id: int
    amount: float


class InvoiceDict(TypedDict):
    id: int
    amount: float
    cents: int


class SparseDict(TypedDict):
    id: int
    vat: NotRequired[int]


class Base(msgspec.Struct):
    id: int


class Derived(Base):
    cents: int = 0


class NeedsCents(msgspec.Struct):
    id: int
    cents: int


class Sparse(msgspec.Struct, omit_defaults=True):
    id: int
    amount: float = 0.0
    vat: int = 0


class Unset(msgspec.Struct):
    id: int
    amount: float
    vat: int | msgspec.UnsetType = msgspec.UNSET


class Renamed(msgspec.Struct, rename="camel"):
    order_id: int


class CamelModel(pydantic.BaseModel):
    orderId: int  # noqa: N815


class Tagged(msgspec.Struct, tag=True):
    id: int
    amount: float


class Address(msgspec.Struct):
    street: str


class Place(msgspec.Struct):
    square: str


class WithAddress(msgspec.Struct):
    at: Address


class WithPlace(msgspec.Struct):
    at: Place


class WithAny(msgspec.Struct):
    at: Any


class WithText(msgspec.Struct):
    at: str | None


class WithMaybe(msgspec.Struct):
    at: Address | None


class Flag(msgspec.Struct):
    on: bool


class Count(msgspec.Struct):
    on: int


class CountModel(pydantic.BaseModel):
    on: int


class Node(msgspec.Struct):
    next: "Node"


class OtherNode(msgspec.Struct):
    next: "OtherNode"


@dataclasses.dataclass
class Late:
    id: int
    amount: float
    vat: int = dataclasses.field(init=False)


T = typing.TypeVar("T")
SameName: Any = msgspec.defstruct("Order", [("id", int)], module="elsewhere")

FITTING: list[tuple[Any, Any]] = [
    *[(kind, kind) for kind in (Order, OrderClass, OrderModel, OrderDict, bytes, dict, Node)],
    *[(one, other) for one in (Order, OrderClass, OrderModel, OrderDict) for other in (Order, OrderModel, OrderDict)],
    *[(kind, dict) for kind in (Order, OrderClass, OrderModel, OrderDict)],
    *[(dict, kind) for kind in (Order, OrderClass, OrderModel, OrderDict)],
    (dict[str, Any], Order),
    (Any, Order),
    (Order, Any),
    (object, bytes),
    (Record, bytes),
    (T, bytes),
    (int, bytes),
    (Order | bytes, Invoice | bytes),
    (Order | Invoice, Invoice),
    (Order | Any, bytes),
    (dict | None, bytes | None),
    (Order, OrderWithNote),
    (OrderDict, InvoiceDict),
    (OrderDict, Invoice),
    (Derived, Base),
    (Base, NeedsCents),
    (Base, Derived),
    (OrderWithNote, OpenModel),
    (Order, LenientModel | OpenModel),
    (Order, BeforeModel),
    (Order, OwnInitModel),
    (Order, ChoiceModel),
    (Order, AliasModel),
    (AliasModel, Order),
    (ComputedModel, InvoiceModel),
    (OpenModel, Order),
    (TextModel, NumberModel),
    (Flag, CountModel),
    (Count, Flag),
    (SparseDict, Base),
    (Sparse, Order),
    (Unset, Order),
    (Late, Order),
    (Renamed, CamelModel),
    (CamelModel, Renamed),
    (WithAddress, WithAny),
    (WithAny, WithPlace),
    (WithMaybe, WithText),
    (WithText, WithMaybe),
    (Node, OtherNode),
]

MISFITS: list[tuple[Any, Any, list[str]]] = [
    (bytes, dict, []),
    (bytes, Order, []),
    (bytes, dict | None, []),
    (dict, bytes, []),
    (Order, bytes, []),
    (OrderDict, bytes, []),
    (bytes | None, dict, []),
    (Order | dict, bytes, []),
    (Order, Invoice, ["Invoice requires `cents: int`, which Order lacks"]),
    (OrderClass, Invoice, ["Invoice requires `cents: int`, which OrderClass lacks"]),
    (OrderModel, Invoice, ["Invoice requires `cents: int`, which OrderModel lacks"]),
    (Order, InvoiceDict, ["InvoiceDict requires `cents: int`, which Order lacks"]),
    (Order, InvoiceModel, ["InvoiceModel requires `cents: int`, which Order lacks"]),
    (Invoice, Order, ["Invoice has `cents`, which Order lacks"]),
    (InvoiceDict, OrderDict, ["InvoiceDict has `cents`, which OrderDict lacks"]),
    (InvoiceDict, OrderModel, ["InvoiceDict has `cents`, which OrderModel lacks"]),
    (OrderWithNote, Order, ["OrderWithNote has `note`, which Order lacks"]),
    (Order, OrderText, ["`id` is int in Order and str in OrderText"]),
    (OrderText, Order, ["`id` is str in OrderText and int in Order"]),
    (Order, TextModel, ["`id` is int in Order and str in TextModel"]),
    (Flag, Count, ["`on` is bool in Flag and int in Count"]),
    (Tagged, Order, ["Tagged has `type`, which Order lacks"]),
    (WithAddress, WithPlace, ["`at` is Address in WithAddress and Place in WithPlace"]),
    (WithAddress, WithText, ["`at` is Address in WithAddress and str | None in WithText"]),
    (Order | OrderText, Invoice, ["Invoice requires `cents: int`, which Order lacks"]),
    (Order, AfterModel, ["AfterModel requires `cents: int`, which Order lacks"] + [
        f"Order has `{name}`, which AfterModel lacks" for name in ("id", "amount")
    ]),
    (Renamed, Base, ["Base requires `id: int`, which Renamed lacks", "Renamed has `orderId`, which Base lacks"]),
    (Order, SameName, [f"{__name__}.Order has `amount`, which elsewhere.Order lacks"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "taken"), FITTING)
def test_a_pair_that_may_fit_is_not_reported(given: Any, taken: Any) -> None:
    assert misfits(given, taken) is None


@pytest.mark.parametrize(("given", "taken", "reasons"), MISFITS)
def test_a_pair_that_cannot_fit_says_which_field(given: Any, taken: Any, reasons: list[str]) -> None:
    assert misfits(given, taken) == reasons

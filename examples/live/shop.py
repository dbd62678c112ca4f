"""A company at work: pipelines that never end, for a look at the page. `make demo-page` serves them.

One flows and has dead letters, one is held up by a slow end, one fails and recovers, one is broken,
one is done. Nothing is kept: the ends only take their time, so it may run for as long as one looks.
"""

import random

import trio
from conduit_connectors import generator
from pydantic import Field

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source, processor
from conduit_py.sdk import Batch, Options
from conduit_py.sdk import DestinationConnector as Sink

ORDER = {"id": "index", "customer": "string", "amount": "float"}


class ShelfOptions(Options):
    """How a shelf behaves."""

    seconds: float = Field(default=0.0, ge=0, description="how long a batch takes")
    refuses: int = Field(default=0, ge=0, description="it has no room for every so-many-th order; 0 has room for all")
    fails: float = Field(default=0.0, ge=0, le=1, description="how often its connection breaks")


class Shelf(Sink[ShelfOptions]):
    """Takes records and keeps none."""

    async def write(self, batch: Batch) -> dict[int, str] | None:
        await trio.sleep(self.options.seconds)
        if random.random() < self.options.fails:
            raise ConnectionError("the bank closed the connection")
        every = self.options.refuses
        if not every:
            return None
        return {
            index: "no room on the shelf" for index, record in enumerate(batch) if record.payload["id"] % every == 1
        }


@processor
def cents(record: Record) -> Record | None:
    """Amounts in cents; an order of nothing is not one, and some amounts are not numbers."""
    order = record.payload
    if order["id"] % 2500 == 250:
        raise ValueError("the amount 'free' is not a number")
    order["cents"] = round(order["amount"] * 50_000)
    del order["amount"]
    return record if order["id"] % 50 else None


@processor
def check_digit(record: Record) -> Record:
    record.payload["check"] = record.payload["id"] * 7 % 97
    return record


def till(record: Record) -> Record:
    record.payload["shop"] = "till"
    return record


def accounts(record: Record) -> Record:
    record.payload["account"] = record.payload["vat"]
    return record


orders = Pipeline(
    "orders",
    description="Orders of a web shop and of a till, into a lake and a file of large ones",
    sources=[
        Source("web", generator.Source(rate=900, fields=ORDER, seed=7)),
        Source("till", generator.Source(rate=120, fields=ORDER, seed=8), processors=[Processor("from-till", till)]),
    ],
    processors=[cents, check_digit],
    destinations=[
        Destination("lake", Shelf(refuses=4000)),
        Destination("large-orders", Shelf(seconds=0.01), when=lambda record: record.payload["cents"] > 45_000),
    ],
    dead_letters=DeadLetters("journal"),
)

clickstream = Pipeline(
    "clickstream",
    description="Page views, faster than the warehouse can take them",
    sources=[Source("views", generator.Source(rate=20_000, fields=ORDER))],
    processors=[Processor("session", check_digit)],
    destinations=[Destination("warehouse", Shelf(seconds=0.4)), Destination("archive", Shelf())],
)

payments = Pipeline(
    "payments",
    description="Payments to a bank whose line is bad",
    sources=[Source("gateway", generator.Source(rate=40, fields=ORDER, seed=3))],
    processors=[Processor("sign", check_digit)],
    destinations=[Destination("bank", Shelf(seconds=0.02, fails=0.002))],
)

invoices = Pipeline(
    "invoices",
    description="Invoices to the accountants; broken since the last release",
    sources=[Source("erp", generator.Source(rate=5, fields=ORDER))],
    processors=[Processor("accounts", accounts)],
    destinations=[Destination("books", Shelf())],
)

backfill = Pipeline(
    "backfill",
    description="Last year's orders, once",
    sources=[Source("old-orders", generator.Source(count=5000, fields=ORDER))],
    destinations=[Destination("lake", Shelf())],
)


def hall(number: int) -> Pipeline:
    """The sensors of a hall: those of every third one report in bursts."""
    burst = {"generate_seconds": 4, "sleep_seconds": 2} if number % 3 == 0 else None
    return Pipeline(
        f"sensors-{number}",
        description=f"Measurements of hall {number}",
        sources=[Source("mqtt", generator.Source(rate=20 + 17 * number, fields=ORDER, seed=number, burst=burst))],
        processors=[Processor("calibrate", check_digit)],
        destinations=[Destination("timeseries", Shelf(seconds=0.01))],
    )


hall_1, hall_2, hall_3, hall_4 = hall(1), hall(2), hall(3), hall(4)
hall_5, hall_6, hall_7, hall_8 = hall(5), hall(6), hall(7), hall(8)

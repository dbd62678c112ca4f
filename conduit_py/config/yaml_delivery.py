"""Delivery in a YAML file, which Conduit's format does not have: the keys `delivery` and `transaction`."""

from typing import Final, get_args

from conduit_py.config.yaml_section import Section
from conduit_py.pipeline import Delivery
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.sdk.options import check_options, did_you_mean

DEFAULT: Final[Delivery] = "at_least_once"
TRANSACTION_KEYS: Final = [name.replace("_", "-") for name in TransactionLimits.model_fields]


def read_delivery(section: Section) -> Delivery:
    """What a pipeline promises; as in Conduit unless it says otherwise."""
    text = section.text("delivery")
    for delivery in _KNOWN:
        if text == delivery:
            return delivery
    if text is not None:
        hint = did_you_mean(text.strip().lower(), list(_KNOWN))
        section.problem("delivery", f"must be {', '.join(_KNOWN[:-1])} or {_KNOWN[-1]}, not {text[:40]!r}", hint)
    return DEFAULT


def read_transaction(section: Section | None) -> TransactionLimits | None:
    """How much an exactly-once pipeline commits at once; None if nothing, or a mistake, is said about it."""
    if section is None:
        return None
    values = {key.replace("-", "_"): text for key in TRANSACTION_KEYS if (text := section.text(key)) is not None}
    checked, problems = check_options(TransactionLimits, values, None)
    for problem in problems:
        section.problem(problem.path.replace("_", "-"), problem.message.replace("_seconds", "-seconds"))
    return checked if isinstance(checked, TransactionLimits) else None


_KNOWN: Final[tuple[Delivery, ...]] = get_args(Delivery)

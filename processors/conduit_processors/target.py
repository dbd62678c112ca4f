"""Targets: the kinds of reference that options of processors accept, checked when they are written down."""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from conduit_processors.reference import Reference
from conduit_processors.spelling import Root, malformed, split_outside_quotes


def references(value: object) -> object:
    """A list of references as Conduit writes it, in one text with commas; anything else as it is."""
    return split_outside_quotes(value, ",") if isinstance(value, str) else value


def _settable(reference: Reference) -> Reference:
    if reference.root is Root.POSITION:
        raise malformed(".Position belongs to the source and never changes")
    if reference.root is Root.RECORD:
        raise malformed("a record cannot be replaced as a whole")
    if reference.root is Root.PAYLOAD:
        raise malformed("choose .Payload.Before or .Payload.After")
    return reference


def _removable(reference: Reference) -> Reference:
    if reference.root in (Root.RECORD, Root.POSITION, Root.OPERATION):
        raise malformed(f"{reference.root.value} is what every record has")
    return reference


def _encodable(reference: Reference) -> Reference:
    if reference.root in _DATA or (reference.root is Root.METADATA and reference.path):
        return reference
    raise malformed("it must be in .Key, .Payload.Before, .Payload.After or .Metadata")


def _structurable(reference: Reference) -> Reference:
    if reference.root in _DATA:
        return reference
    raise malformed("it must be in .Key, .Payload.Before or .Payload.After")


def _inner(reference: Reference) -> Reference:
    if reference.root in _DATA and reference.path:
        return reference
    raise malformed("it must name a field inside .Key, .Payload.Before or .Payload.After")


def _in_payload(reference: Reference) -> Reference:
    if reference.root in (Root.BEFORE, Root.AFTER):
        return reference
    raise malformed("it must be in .Payload.Before or .Payload.After")


_DATA = (Root.KEY, Root.BEFORE, Root.AFTER)

Settable: TypeAlias = Annotated[Reference, AfterValidator(_settable)]
"""What a processor may set: everything but the position and the record itself."""
Removable: TypeAlias = Annotated[Reference, AfterValidator(_removable)]
"""What a record can be without."""
Encodable: TypeAlias = Annotated[Reference, AfterValidator(_encodable)]
"""What may hold text or bytes: key, payload, a field of them, a field of the metadata."""
Structurable: TypeAlias = Annotated[Reference, AfterValidator(_structurable)]
"""What may hold structured data: key, payload, a field of them."""
Inner: TypeAlias = Annotated[Reference, AfterValidator(_inner)]
"""A field of structured data."""
InPayload: TypeAlias = Annotated[Reference, AfterValidator(_in_payload)]
"""One side of the payload, or a field of it."""

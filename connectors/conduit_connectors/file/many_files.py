"""Several files by a pattern, and compressed ones: read as objects of this machine."""

import re
from typing import Any

from conduit_connectors.compression import compression_of
from conduit_connectors.file.source_options import SourceOptions

_WILDCARD = re.compile(r"[*?\[]")


def is_plain_file(options: SourceOptions) -> bool:
    """Return True if the path names one file whose bytes are its lines. A name may have a wildcard in it, too."""
    if options.compression not in ("auto", "none"):
        return False
    if options.tail:
        return True
    compressed = options.compression == "auto" and compression_of(str(options.path)) is not None
    return not compressed and (_WILDCARD.search(str(options.path)) is None or options.path.exists())


def locate_object(position: bytes) -> str | None:
    """Return where a record of such files is; None for a position of another kind."""
    if not position.startswith(b"objects:"):
        return None
    from conduit_connectors.objects.object_position import ObjectPosition

    place = ObjectPosition.parse(position)
    return f"{place.found.info.name} up to {place.offset}"


def read_many_files(options: SourceOptions, payload_type: Any) -> Any:
    """Return an ObjectReading of the files of the pattern, in the order of their names."""
    # Imported only here: most sources read one plain file, and should start quickly.
    from conduit_connectors.objects.contents import ContentOptions
    from conduit_connectors.objects.pattern import ObjectPattern
    from conduit_connectors.objects.reading import ObjectReading, ReadingOptions
    from conduit_connectors.objects.store import LocalStore

    content = ContentOptions.of(options, payload_type)
    return ObjectReading(LocalStore(), ObjectPattern([str(options.path)]), ReadingOptions(content, options.on_replaced))

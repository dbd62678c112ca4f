"""Models behind HTTP: `embed` makes vectors of texts, `model.call` asks any endpoint.

In reading order: `embed`, `call`, `endpoint` (what both share).
"""

from conduit_processors.model.call import Call
from conduit_processors.model.embed import Embed

__all__ = ["Call", "Embed"]

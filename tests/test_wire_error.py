"""WireError: an error that leaves a process comes back as the same error, or as one that is handled alike."""

import msgspec
import pytest

from conduit_py import errors
from conduit_py.errors import ConduitError, FatalError, NodeFailed, StaleToken, StateLocked, TransientError
from conduit_py.store.claim import OutOfStep
from conduit_py.wire_error import WireError


def sent(error: BaseException) -> WireError:
    """As it arrives on the other side."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(WireError.of(error)), type=WireError)


def classes(root: type[ConduitError]) -> list[type[ConduitError]]:
    below = [kind for each in root.__subclasses__() for kind in classes(each)]
    return [root, *below] if root.__module__ == errors.__name__ else below


@pytest.mark.parametrize("kind", [kind for kind in classes(ConduitError) if kind.__module__ == errors.__name__])
def test_every_class_of_the_tree_comes_back_as_itself(kind: type[ConduitError]) -> None:
    error = kind.__new__(kind)
    error.args = ("it broke",)
    error.suggestion = "mend it"
    back = sent(error).to_error()

    assert type(back) is kind
    assert (back.code, back.message, back.suggestion) == (kind.code, "it broke", "mend it")


def test_the_node_and_the_facts_come_along() -> None:
    failed = sent(NodeFailed("lake", "write", OSError("disk full"))).to_error()
    stale = sent(StaleToken("queue", "shard-7", "is not ours")).to_error()
    out = sent(OutOfStep("orders", 7, 4)).to_error()

    assert (failed.message, vars(failed)["node"]) == ("lake: write failed: OSError: disk full", "lake")
    assert (vars(stale)["scope"], vars(stale)["shard"]) == ("queue", "shard-7")
    assert (vars(out)["owner"], vars(out)["number"], vars(out)["committed"]) == ("orders", 7, 4)


def test_an_error_whose_class_is_not_known_here_is_handled_as_its_family_is_and_keeps_its_code() -> None:
    class Throttled(TransientError):
        code = "shop.throttled"

    class Gone(FatalError):
        """Has the code of its family."""

    throttled, gone = sent(Throttled("slow down")).to_error(), sent(Gone("it is gone")).to_error()

    assert (type(throttled), throttled.code, throttled.message) == (TransientError, "shop.throttled", "slow down")
    assert (type(gone), gone.code) == (FatalError, "run.fatal")


def test_what_is_not_ours_is_internal_and_named_by_its_type() -> None:
    assert WireError.of(KeyError("amount")) == WireError("internal", "KeyError: 'amount'")


def test_text_that_cannot_be_encoded_is_written_out() -> None:
    error = StateLocked("half a pair: \ud800", suggestion="\udfff")

    assert sent(error).message == "half a pair: \\ud800"
    assert sent(error).suggestion == "\\udfff"


def test_the_fields_of_the_api_come_back_and_anything_else_is_no_error() -> None:
    error = WireError("request.invalid", "limit: too large", suggestion="at most 1000", path="query.limit")

    assert WireError.from_fields(error.to_fields()) == error
    assert WireError("a.b", "c").to_fields() == {"code": "a.b", "message": "c", "suggestion": None}
    assert [WireError.from_fields(each) for each in (None, "text", {}, {"code": "x"}, [1])] == [None] * 5

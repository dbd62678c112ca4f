"""The digits of an integer, which Python writes only up to a limit."""

from conduit_py.sdk import RecordRefused


def integer_text(name: str, value: int) -> str:
    """Return the digits of the field `name`. Raises RecordRefused for more of them than Python writes (4300)."""
    try:
        return str(value)
    except ValueError:
        # A record can bring 4300 digits, and a product of two such numbers has more: that is no reason to stop.
        bits = value.bit_length()
        raise RecordRefused(f"{name} is an integer of {bits} bits, which has too many digits to be written") from None

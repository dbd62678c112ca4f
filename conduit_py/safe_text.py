"""Encodable: text that can leave the process, whatever a record, a file name or an error put into it."""


def safe_text(text: str) -> str:
    r"""The text with every half of a surrogate pair written out, as `\ud800`; any other text is itself.

    Such a half is text in Python and nowhere else: no file, database or answer could carry it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text

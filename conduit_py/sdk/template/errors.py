"""Errors in templates and field paths, found before any record comes."""


class TemplateInvalid(ValueError):
    """What is wrong with a template; `offset` is the character of its text, counted from 0."""

    def __init__(self, message: str, offset: int, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.suggestion = suggestion

    def line(self, text: str) -> int:
        """The line of the text that is wrong, counted from 0."""
        return text.count("\n", 0, self.offset)

    def describe(self, text: str) -> str:
        """The message with the place in the text, as a person counts: characters of a line from 1."""
        start = text.rfind("\n", 0, self.offset) + 1
        return f"{self.message}, at character {self.offset - start + 1}"


class FieldPathInvalid(ValueError):
    """Why names or a text are no path to a field of a record."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion

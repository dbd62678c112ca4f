"""Go templates, conditions in CEL, and field paths over records, for options of processors.

A template is a safe subset of Go's: `if`, functions, pipes and fields, and no loops, variables or methods. Read
in this order: `template` (Template and conditions), `lexer`, `parser`, then `functions` with `strings` and
`values`, and for fields `field_path` with `field_syntax`. Both are options written as text: `sdk/plugin.TextOption`.
"""

from conduit_py.sdk.plugin import TextOption, option_error
from conduit_py.sdk.template.field_path import FieldPath
from conduit_py.sdk.template.field_syntax import RecordPart, field_path_error, split_outside_quotes
from conduit_py.sdk.template.lexer import TemplateInvalid
from conduit_py.sdk.template.template import (
    CelCondition,
    Template,
    TemplateCondition,
    condition_of,
    condition_option,
    is_template,
)
from conduit_py.sdk.template.values import kind_of, text_of

__all__ = [
    "CelCondition",
    "FieldPath",
    "RecordPart",
    "Template",
    "TemplateCondition",
    "TemplateInvalid",
    "TextOption",
    "condition_of",
    "condition_option",
    "field_path_error",
    "is_template",
    "kind_of",
    "option_error",
    "split_outside_quotes",
    "text_of",
]

"""Bad definitions: every problem is reported with its line before anything starts."""

from collections.abc import Sequence

import pytest
from command_folder import DESTINATION, HEAD, SOURCE, Folder

A = f'Source("a", {SOURCE})'


B = f'Source("b", {SOURCE})'


OUT = f'Destination("out", {DESTINATION}'


GIVEN = """
step = lambda record: record

class Bare(sdk.SourceConnector[sdk.Options]):
    def __init__(self, path): self.path = path
    def read(self, n): raise sdk.EndOfSource
"""


PROBLEMS = {
    "option_types": (
        f'sources=[Source("a", file.Source(path="x", format="jsn", tail="maybe", line_size_max="big"))], '
        f"destinations=[{OUT})]",
        "sources.a.format: Input should be 'lines', 'json', 'csv' or 'opencdc', not 'jsn' (did you mean 'json'?)",
        "sources.a.tail: Input should be a valid boolean, unable to interpret input, not 'maybe'",
        "sources.a.line_size_max: Input should be a valid integer, unable to parse string as an integer, not 'big'",
    ),
    "unknown_option": (
        f'sources=[Source("a", file.Source(pth="x"))], destinations=[{OUT})]',
        "sources.a.path: this option is required (add path=…: the file to read, or several, as in/*.csv)",
        "sources.a.pth: there is no such option (did you mean 'path'?)",
    ),
    "unknown_option_by_name": (
        f'sources=[{A}], destinations=[Destination("out", "file", settings={{"path": "x", "fromat": "json"}})]',
        "destinations.out.fromat: there is no such option (did you mean 'format'?)",
    ),
    "unknown_connector": (
        f'sources=[Source("a", "fiel")], destinations=[{OUT})]',
        "sources.a.connector: there is no source plugin 'fiel' (did you mean 'file'?)",
    ),
    "a_destination_as_a_source": (
        f'sources=[Source("a", {DESTINATION})], destinations=[{OUT})]',
        "sources.a.connector: must be a source connector, not a destination connector"
        " (connectors derive from conduit_py.sdk.SourceConnector)",
    ),
    "a_class_as_a_connector": (
        f'sources=[Source("a", file.Source)], destinations=[{OUT})]',
        "sources.a.connector: must be a source connector, not the class Source"
        " (connectors derive from conduit_py.sdk.SourceConnector)",
    ),
    "a_connector_without_its_options": (
        f'sources=[Source("a", Bare("x"))], destinations=[{OUT})]',
        "sources.a.connector: Bare.__init__ does not pass its options on"
        " (call super().__init__(**options), or declare options and leave __init__ out)",
    ),
    "out_of_range": (
        f'sources=[Source("a", {SOURCE}, batch_size=0)], destinations=[{OUT})]',
        "sources.a.batch_size: Input should be greater than or equal to 1, not 0",
    ),
    "duplicate_ids": (
        f"sources=[{A}, {A}], destinations=[{OUT})]",
        "a: the id 'a' is already taken by a source (give every node an id of its own)",
    ),
    "one_id_for_both_ends": (
        f'sources=[{A}], destinations=[Destination("a", {DESTINATION})]',
        "a: the id 'a' is already taken by a source (give every node an id of its own)",
    ),
    "a_cycle": (
        f'sources=[{A}], processors=[Processor("x", step, after=["a", "y"]), Processor("y", step, after="x")], '
        f'destinations=[{OUT}, after="y")]',
        "processors.x: the graph has a cycle: x → y → x (remove one of these `after`)",
    ),
    "no_source": (f"sources=[], destinations=[{OUT})]", "sources: a pipeline needs at least one source"),
    "no_destination": (f"sources=[{A}], destinations=[]", "destinations: a pipeline needs at least one destination"),
    "a_loose_source": (
        f'sources=[{A}, {B}], destinations=[{OUT}, after="a")]',
        "sources.b: its records go nowhere (add a destination with after='b')",
    ),
    "a_loose_processor": (
        f'sources=[{A}], processors=[Processor("x", step)], destinations=[{OUT}, after="a")]',
        "processors.x: its records go nowhere (add a destination with after='x')",
    ),
    "after_nobody": (
        f'sources=[{A}], destinations=[{OUT}, after="aa")]',
        "out.after: there is no node 'aa' (did you mean 'a'?)",
    ),
    "not_a_list": (
        f"sources={A}, destinations={OUT})",
        "sources: must be a list, not a Source (write sources=[…])",
        "destinations: must be a list, not a Destination (write destinations=[…])",
    ),
    "no_processor": (
        f'sources=[{A}], processors=[5, Processor("x", "json.decod")], destinations=[{OUT})]',
        "processors.int.processor: must be a function or a processor, not 5",
        "processors.x.processor: there is no processor plugin 'json.decod' (did you mean 'json.decode'?)",
    ),
    "a_processor_without_a_parameter": (
        f"sources=[{A}], processors=[lambda: None], destinations=[{OUT})]",
        "processors.lambda: cannot be called with a record: too many positional arguments (it must take one argument)",
    ),
    "a_processor_that_yields": (
        f"sources=[{A}], processors=[lambda record: (yield record)], destinations=[{OUT})]",
        "processors.lambda: has a yield, so its calls return no records (return a list of them)",
    ),
    "keys_of_no_state": (
        f"sources=[{A}], processors=[processor(step, state_keys=list)], destinations=[{OUT})]",
        "processors.lambda.state_keys: names keys of a state, but the function takes none"
        " (write state=True, or leave state_keys out)",
    ),
    "dead_letters": (
        f'sources=[{A}], destinations=[{OUT})], dead_letters="drop"',
        "dead_letters: must be DeadLetters, not 'drop' (write DeadLetters('drop'))",
    ),
    "a_dead_letter_handler": (
        f'sources=[{A}], destinations=[{OUT})], dead_letters=DeadLetters("dorp")',
        'dead_letters.handler: must be "stop", "drop", "journal", a destination connector or a callable, not \'dorp\''
        " (did you mean 'drop'?)",
    ),
}


def test_all_problems_are_named_with_their_line_before_anything_starts(folder: Folder) -> None:
    folder.numbers(1)
    folder.define("".join(f'{id} = Pipeline("{id}", {text})\n' for id, (text, *_) in PROBLEMS.items()), GIVEN)
    answer = folder.run()
    lines = answer.stderr.splitlines()
    expected = [
        f"p.py:{line}: {id}.{problem}"
        for line, (id, (_, *problems)) in enumerate(PROBLEMS.items(), (HEAD + GIVEN).count("\n") + 1)
        for problem in problems
    ]

    assert answer.code == 2
    assert lines[:-1] == expected
    assert lines[-1] == f"{len(expected)} problems; nothing was started"
    assert folder.untouched


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("import conduit_conectors", 3, ("error: p.py:5: imports 'conduit_conectors'", "mean 'conduit_connectors'?")),
        ("import nowhere_to_be_found", 3, ("error: p.py:5: imports 'nowhere_to_be_found'", "install it for")),
        ("from conduit_connectors import flie", 2, ("p.py:5: ", "'flie'", "did you mean 'file'?")),
        ("import conduit_connectors.flie", 2, ("p.py:5: ", "'conduit_connectors.flie'", "did you mean 'file'?")),
        ("from conduit_py import Pipelin", 2, ("p.py:5: ", "'Pipelin'", "did you mean 'Pipeline'?")),
        ("pipeline = Pipline()", 2, ("p.py:5: NameError: name 'Pipline' is not defined",)),
        ("pipeline = Pipeline(", 2, ("p.py:5: '(' was never closed",)),
    ],
)
def test_a_misspelt_file_is_answered_with_its_line(folder: Folder, line: str, code: int, words: Sequence[str]) -> None:
    folder.define(f"{line}\n")

    assert folder.run().has(code, *words)
    assert folder.untouched


# State that cannot be used.

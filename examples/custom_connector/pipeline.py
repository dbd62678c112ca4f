"""A pipeline with connectors of one's own; the refused record goes to a function."""

from countdown import Countdown, Total

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Source


def note(letter: DeadLetter) -> None:
    with open("refused.txt", "a") as refused:
        refused.write(f"{letter.record.payload['number']}: {letter.error}\n")


pipeline = Pipeline(
    "countdown",
    sources=[Source("countdown", Countdown(start=100))],
    destinations=[Destination("total", Total(path="sum.txt"))],
    dead_letters=DeadLetters(note),
)

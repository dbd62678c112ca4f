"""A process that is killed: records of one topic into another, exactly once.

kafka_child.py STATE '{"source": {…}, "destination": {…}}'    with the options of both connectors; runs to the end
"""

import json
import sys
from pathlib import Path

from conduit_connectors import kafka

import conduit_py
from conduit_py import Destination, Pipeline, Source, TransactionLimits
from conduit_py.status import Status


def main(state: Path, options: dict[str, dict[str, object]]) -> int:
    pipeline = Pipeline(
        state.name,
        sources=[Source("in", kafka.Source(**options["source"]), batch_size=50)],  # type: ignore[arg-type]
        destinations=[Destination("out", kafka.Destination(**options["destination"]))],  # type: ignore[arg-type]
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=200),
    )
    outcome = conduit_py.run(pipeline, state=state)
    if outcome.error is not None:
        print(outcome.error, file=sys.stderr)
    return 0 if outcome.status in (Status.COMPLETED, Status.STOPPED) else 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))

"""Exactly-once delivery: transactions that commit positions, state, dead letters and intents in one step.

1. `commit_together` — the commit strategy: gather, stage, commit in one fenced step, apply, ack.
2. `gate` — what belongs to a transaction, when it is full, and what a processor defers to the next one.
3. `participants` — the destinations that stage, and the one that carries the commit if there is one.
4. `checkpoint` — what a committed transaction still has to do, kept in the commit itself.
5. `isolation` — how a record that makes its whole transaction fail is found, so that it fails alone.

The invariants I1 to I15 and the table of crashes are in `docs/explanation/exactly-once.md`.
"""

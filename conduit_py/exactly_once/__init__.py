"""Exactly-once delivery: transactions that commit positions, state, dead letters and intents in one step.

1. `commit_together` — the commit strategy: gather, stage, commit in one fenced step, apply, ack.
2. `gate` — which records belong to a transaction, when it is full, and which are deferred to the next one.
3. `participants` — the destinations that stage, and the one that carries the commit, if any; with the checkpoint, the
   remaining work of a committed transaction, stored in the commit itself.
4. `isolation` — finds the record that makes its transaction fail, so that it fails alone.

The invariants I1 to I18 are in `docs/explanation/exactly-once.md`.
"""

"""One run of a pipeline: what a batch meets between its source and its destinations, in reading order.

1. `run` — opens connectors (destinations first, sources last), runs every task in one nursery, keeps the first error.
2. `wiring` — from the graph to tasks and channels. A node is a task only where that adds concurrency.
3. `reader` — the only caller of a source's `read`. Reads what the window has room for, into a `ReadBuffer`.
4. `dispatcher` — gives records their identities, registers their positions in the ledger and sends them on.
5. `processor_node`, `worker` — filter, split, refuse; condition, retries, workers, threads. `arrow` shows a processor
   tables, `atomic_state` makes a change of its state whole, `hot_swap` exchanges processors while a run goes on.
6. `fan_out` — one batch to every follower. `fan_in` — the inbox of a task, fair over its senders.
7. `writer` — the only caller of a destination's `write` and `flush`. `ack_reader` reads answers that come later.
8. `ledger` — votes outstanding on each message, the settled prefix, credit. Synchronous and pure.
9. `settler` — dead letters, then the store, then the ack, then credit. The only caller of a source's `ack`.
   `commit` — when that happens: one strategy for each delivery guarantee.
10. `dead_letters` — one handler for each policy. `replay` sends letters again from where they were refused.

Every node has a `node_context`. `plugin_calls` is how plugins are called, sync or async, and where their errors get a
name. `meter` counts, `signal` wakes and paces, `connector_changes` tells connectors that they changed, and
`shard_tracker` records the work of sources that share it.

The states of a message::

    read ── admit ──> in the buffer ── register ──> open ── votes ──> acked ───┐
                                                     │                         ├── settled ── durable ── released
                                                     └── a nack ──> nacked ────┘
                                                                    (its dead letter is stored first)

*Open* until every destination that it can reach has voted on each of its pieces; then, once and for ever, *acked* or
*nacked* (`ledger`). Messages settle in the order they were read (`settler`), and give their credit back when their
position is durable and acked. What a run that ends early leaves open is read again by the next one.
"""

"""One run of a pipeline: every step of a batch from its source to its destinations, in reading order.

1. `run` — opens connectors (destinations first, sources last), runs every task in one nursery, keeps the first error.
2. `wiring` — builds tasks and channels from the graph. A node is a task only where that adds concurrency.
3. `reader` — `Reader` is the only caller of a source's `read`. It reads into a `ReadBuffer`, never more than the
   window allows.
4. `reader` — `Dispatcher` gives records their identities, registers their positions in the ledger and sends them on.
5. `processor_node`, `worker` — filter, split, refuse; workers, threads. `worker_process` is a worker in a process of
   its own. `processor_calls` adds conditions, retries and state changes that are all-or-nothing; it and `arrow` call
   a processor with payloads and tables. `held_batches` holds messages until a batch is due. `hot_swap` replaces
   processors during a run.
6. `fan_out` — `run_chain` takes a batch through adjacent processors, `FanOut` to every follower. `FanIn` is the inbox
   of a task, fair over its senders.
7. `writer` — the only caller of a destination's `write` and `flush`. `ack_reader` reads answers that come later.
8. `ledger` — votes outstanding on each message, the settled prefix, credit. Synchronous and pure.
9. `settler` — stores dead letters, saves positions, acks, then returns credit. The only caller of a source's `ack`.
   `commit` — decides when that happens: one strategy for each delivery guarantee.
10. `dead_letters` — one handler for each policy. `replay` sends letters again from where they were refused.

Every node has a `NodeContext` (in `commit`). `plugin_calls` calls sync and async plugins and translates their
errors. `meter` counts, `signal` wakes and paces tasks, `connector_changes` notifies connectors of changed options.
`source_calls` is for sources that take requests, have a limit or share their work with other runs.

The states of a message::

    read ── admit ──> in the buffer ── register ──> open ── votes ──> acked ───┐
                                                     │                         ├── settled ── durable ── released
                                                     └── a nack ──> nacked ────┘
                                                                    (its dead letter is stored first)

A message is *open* until every destination that it can reach has voted on each of its pieces. Then it is *acked* or
*nacked*, once and finally (`ledger`). Messages settle in the order they were read (`settler`). They return their
credit when their position is durable and acked. Messages that a run leaves open are read again by the next run.
"""

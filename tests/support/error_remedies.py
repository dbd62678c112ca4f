"""What causes each error most often and what to do about it, by code, for `docs/reference/errors.md`.

The codes are found in the code: `tests/test_error_tree.py` fails if one is missing here, or stands only here.
"""

REQUEST_CODES = {
    "access.refused": "403: the token does not allow the request",
    "access.token_missing": "401: the request has no valid token",
    "hook.failed": "503: the source of a webhook raised an error",
    "hook.not_running": "503: the pipeline of the webhook does not run now",
    "hook.unknown": "404: no webhook has this address",
    "host.refused": "400: the server does not accept the name in the `Host` header",
    "internal": "500: an error that is not one of ours",
    "method.not_allowed": "405: the path does not take this method",
    "origin.refused": "403: a page of another site sent a request that changes something",
    "path.unknown": "404: the API has no such path",
    "request.invalid": "422: a field, a parameter or the body is not what the path takes",
    "request.malformed": "400: the bytes are no HTTP request, or the body is no JSON",
    "request.refused": "another status: the web framework refused the request",
    "request.timed_out": "408: the body did not arrive in time",
    "request.too_large": "413: the body is too long",
}
"""The codes of HTTP requests, which no class of ours has: the status, and what it means."""

REMEDIES: dict[str, tuple[str, str]] = {
    # HTTP requests
    "access.refused": (
        "A token with the role `read` for a change, or `operate` for what needs `admin`.",
        "Send a token with the role that the message names.",
    ),
    "access.token_missing": (
        "No `Authorization` header, or a token that the server does not have.",
        "Send `Authorization: Bearer TOKEN`. Commands take `--token-file` or `CONDUIT_API_TOKEN`.",
    ),
    "hook.failed": (
        "A bug in the source, or its pipeline ended during the request.",
        "Read the log of the server. The sender may repeat the request: `retry-after` says when.",
    ),
    "hook.not_running": (
        "The pipeline is stopped, is degraded, or waits before it starts again.",
        "Start the pipeline. The sender may repeat the request: `retry-after` says when.",
    ),
    "hook.unknown": (
        "A wrong id of the pipeline or the source in the path, or the source takes no webhooks.",
        "Send to `/hooks/PIPELINE/SOURCE`, with the ids of the definition.",
    ),
    "host.refused": (
        "The server is reached by a name that is not in its settings, often behind a proxy.",
        "Use its address, or allow the name with `serve --allow-host`.",
    ),
    "internal": (
        "A bug in conduit-py or in a plugin.",
        "Look for the id of the message in the log of the server. For a command, run it again with `--debug`.",
    ),
    "method.not_allowed": (
        "A `GET` where the path takes a `POST`, or the other way round.",
        "Use a method of the `allow` header, or see the [HTTP API](http-api.md).",
    ),
    "origin.refused": (
        "A page of another site calls the API from a browser, or a proxy changes the `Host` header.",
        "Call the API from a program. Let the proxy pass `Host` and `Origin` on.",
    ),
    "path.unknown": (
        "A spelling mistake, or a path of another version.",
        "Compare with the [HTTP API](http-api.md). The server has its own at `/api/v1/openapi.json`.",
    ),
    "request.invalid": (
        "A misspelled field, a number that is out of range, or a field that is missing.",
        "Correct what `path` names. The message says what is expected.",
    ),
    "request.malformed": (
        "A client that does not speak HTTP/1.1, HTTPS sent to a server without TLS, or broken JSON.",
        "Check the address and `http` or `https`, and send valid JSON.",
    ),
    "request.refused": (
        "An unusual request to a path that exists.",
        "Read the HTTP status of the answer, and compare with the [HTTP API](http-api.md).",
    ),
    "request.timed_out": (
        "A slow connection, or a client that announces more bytes than it sends.",
        "Send the request again, with a correct `content-length`.",
    ),
    "request.too_large": (
        "A record that was edited to be very long, or a list of very many ids.",
        "Send less at once. For many dead letters, give a filter in place of ids.",
    ),
    # Definitions, commands and single records
    "command.unclear": (
        "A command that deletes has no `--yes` and no terminal, or a file with a record cannot be used.",
        "Add the option or the file that the message names.",
    ),
    "dead_letter.found": (
        "`raise_for_dead_letters()` was called, and records were refused.",
        "Look at `dead_letters` of the outcome, then correct the records or the node that refused them.",
    ),
    "file.invalid": (
        "A syntax error, an import that fails, a wrong path, or problems of the pipelines in the file.",
        "Correct the line that each problem names. `conduit-py check FILE` lists all of them.",
    ),
    "file.no_pipeline": (
        "The pipeline is made in a function, or stands in a list.",
        "Give each pipeline a name at the top level of the file.",
    ),
    "pipeline.invalid": (
        "An option that does not exist, an `after` that names no node, or parts that do not fit together.",
        "Correct each problem. `conduit-py check FILE` lists them without a start.",
    ),
    "plugin.unknown": (
        "A misspelled name, or a package that is not installed.",
        "See `conduit-py plugins list`, and install the package of the plugin.",
    ),
    "record.refused": (
        "A value that a processor, a format or a column cannot take.",
        "Keep such records with `DeadLetters.keep()`, then [replay](../how-to/handle-dead-letters.md) them.",
    ),
    "secret.unavailable": (
        "A variable that is not set, a file that cannot be read, or a vault that does not answer.",
        "Set it for the user that runs conduit-py. See [how to keep secrets](../how-to/keep-secrets.md).",
    ),
    "server.refused": (
        "The server answered with another code, which is in brackets at the end of the message.",
        "Look that code up on this page. With `--json` the command prints it as the code.",
    ),
    "wait.timed_out": (
        "A stop waits for records in flight, often for a destination that does not answer.",
        "Look at what the message says it waits for. Wait longer with `--wait`, or stop with `--force`.",
    ),
    # The environment
    "environment.unfit": (
        "A package, Java or a permission is missing, a port is taken, or a directory cannot be used.",
        "Do what the message suggests. `conduit-py doctor` checks the machine.",
    ),
    "server.unreachable": (
        "No server runs there, or the address, the port or the certificate is another.",
        "Start one with `conduit-py serve`, or give its address with `--url` or `CONDUIT_URL`.",
    ),
    "state.locked": (
        "A server or another `run` uses the same state directory.",
        "Stop the process that the message names, or choose another directory with `--state`.",
    ),
    # A server in its present state
    "dead_letter.queued": (
        "The letter is about to be sent again, and its pipeline does not run or is busy.",
        "Wait until it is delivered or refused. A pipeline that does not run sends it when it is started.",
    ),
    "dead_letter.unclear": (
        "Several nodes refused the record, each with another form of it; or `when` is not a condition.",
        "Name the node, or correct the condition.",
    ),
    "dead_letter.unknown": (
        "The letter was delivered, was discarded, or was removed by its retention.",
        "List what is there: `conduit-py dlq list`.",
    ),
    "fleet.refused": (
        "A server of another version refuses a request for a reason that this version does not have.",
        "Read the message. Use the same version for commands and server.",
    ),
    "live.full": (
        "Too many open pages or programs follow the server.",
        "Close some of them, or poll `/api/v1/pipelines`.",
    ),
    "pipeline.not_running": (
        "The pipeline is stopped, has completed, or is about to start or end.",
        "Start it with `conduit-py pipelines start ID`, or try again in a moment.",
    ),
    "pipeline.running": (
        "A position is changed while the pipeline runs, or it is started twice.",
        "Stop it first: `conduit-py pipelines stop ID`.",
    ),
    "pipeline.unknown": (
        "A misspelled id of a pipeline, node or source, or a file that the server does not read.",
        "Choose one of the ids in the suggestion. `conduit-py pipelines list` has all pipelines.",
    ),
    "position.bound": (
        "A processor has counted what was read, and the position is to be changed without its state.",
        "Forget both with `conduit-py positions reset ID --all`, or keep the state with `--keep-state`.",
    ),
    "position.invalid": (
        "The position is of another source, or of another type of connector.",
        "Give one as `conduit-py positions show` and `history` print it.",
    ),
    "position.unknown": (
        "The time is before the oldest point of the history.",
        "See `conduit-py positions history`. Replay from a later time, or from the start.",
    ),
    "reload.no_files": (
        "A Python program started the server with pipelines of its own.",
        "Change the pipelines in that program. A server of `conduit-py serve` reads files.",
    ),
    "server.shutting_down": (
        "The server got the signal to stop, for example by a restart of the machine or of the container.",
        "Wait until it runs again. It starts what was running.",
    ),
    "snapshot.refused": (
        "The source takes no such requests, does not read that table, or did not answer in time.",
        "Name a table that it reads, or reset the position of the source to read everything again.",
    ),
    "tap.full": (
        "Taps that nobody watches any more are still open.",
        "Close one of them: a page, or a `conduit-py tap`.",
    ),
    "tap.impossible": (
        "The pipeline runs on Spark, or `when` is not a condition.",
        'Try the pipeline on the engine "trio", or correct the condition.',
    ),
    # Runs
    "run.failed": (
        "A worker or a child process ended with an error whose class is not known here.",
        "Read the message and the log. Use the same version in all processes.",
    ),
    # Transient errors
    "journal.busy": (
        "A process that appends to the journal is stuck or was suspended.",
        "Resume or end the process that the message names.",
    ),
    "journal.failed": (
        "The disk failed, or another program changed the files of the journal.",
        "Check the disk. The next start opens the journal again and verifies it.",
    ),
    "journal.full": (
        "The disk is full.",
        "Make room. Nothing of the append was written, and the next one is tried.",
    ),
    "node.failed": (
        "A client library raised its own error, such as a lost connection, or the connector has a bug.",
        "Read the error in the message. A connector that raises `TransientError` or `FatalError` says more.",
    ),
    "process.lost": (
        "The process was killed, most often because memory ran out, or Java or Python crashed.",
        "Read the lines before it in the log. Give it more memory, or make batches smaller.",
    ),
    "run.elsewhere": (
        "Two servers share one state, and the other runs the pipeline.",
        "Nothing, if this one is to take over later. Else stop the pipeline on the other.",
    ),
    "run.exhausted": (
        "Records too large for the memory, or limits too low for the number of pipelines.",
        "Give more memory, raise `ulimit -n` or `ulimit -u`, or make `batch_size` and `window` smaller.",
    ),
    "run.piece_refused": (
        "A table cannot take a row, or executors of Spark do not reach the place to write to.",
        "Nothing for a single row: the driver writes record by record and finds it. Else do what is suggested.",
    ),
    "run.transient": (
        "A system does not answer, limits requests, or is being restarted.",
        "Check that system. [Retries and recovery](../how-to/retry-and-recover.md) try again.",
    ),
    "state.failed": (
        "The disk of the state is full or broken, or the PostgreSQL server of the state does not answer.",
        "Check the disk or the server. The pipeline goes on from its last saved position.",
    ),
    "tracker.busy": (
        "A queue delivered the same message twice at the same time.",
        "Try again later. If the first transaction commits, the message is a repeat.",
    ),
    "transaction.repeated": (
        "Another owner recorded the same message meanwhile.",
        "Run the transaction again: it then finds the key. Under `serve` a pipeline does so by itself.",
    ),
    "transaction.stale_token": (
        "The worker was slow or suspended, and its lease went to another.",
        "Nothing: the other does the work. If it happens often, allow more time for a lease.",
    ),
    # Fatal errors
    "claim.out_of_step": (
        "The state or a database was restored alone from a backup.",
        "Restore both from the same moment.",
    ),
    "contract.broken": (
        "A plugin returned something else than its contract allows, such as more results than records.",
        "Correct the plugin. `conduit_py.testing` has tests for connectors.",
    ),
    "dead_letter.failed": (
        "The destination or the function for dead letters failed.",
        "Repair it, then run again: the record was not acked.",
    ),
    "dead_letter.not_allowed": (
        "A record was refused and the policy is to stop, or nearly all records were refused.",
        "Correct the node or the data, or [keep such records](../how-to/handle-dead-letters.md).",
    ),
    "journal.damaged": (
        "A broken disk, or a program that changed the files.",
        "See `conduit-py journal verify`. `repair` sets the damage aside, and readers go on after it.",
    ),
    "journal.frame_too_large": (
        "One append holds too many or too large messages.",
        "Append less at once.",
    ),
    "journal.gap": (
        "The source stopped for so long that what it had to read was pruned, or a file is missing.",
        "Put the file back. Or forget the position of the source, to go on with what is there.",
    ),
    "journal.replay_invalid": (
        "A program gave a `Sequencer` other frames than it asked for.",
        "Replay exactly the range that it names.",
    ),
    "journal.unfit": (
        "The directory may not be written to, or files of the journal were removed or cut.",
        "Choose another directory, put the files back, or accept the loss with `conduit-py journal repair`.",
    ),
    "journal.wrong_offset": (
        "Another writer appended first.",
        "Read the head of the journal again, and append there.",
    ),
    "plugin.asyncio": (
        "An async function uses a library for asyncio.",
        "Give the processor `asyncio=True`, use a library for trio or anyio, or write a plain function.",
    ),
    "processor.cannot_defer": (
        "`Defer` without `defers=True`, in a condition, or for some records of a batch only.",
        "Declare `defers=True` with exactly-once delivery, and defer all records behind the first one.",
    ),
    "processor.deferred_first": (
        "The processor defers whatever comes, also the first record of a transaction.",
        "Defer only if `state.first` is false.",
    ),
    "row.refused": (
        "A row that the destination cannot take.",
        "Correct or filter the row in Spark, or write with a pipeline, which has dead letters.",
    ),
    "run.fatal": (
        "A wrong option, password, path or table, or data that does not belong together.",
        "Do what the message suggests, then start the pipeline again.",
    ),
    "run.fenced": (
        "Two processes run the same pipeline, or a run was suspended and another took over.",
        "Run a pipeline in one process at a time. Nothing was lost or duplicated.",
    ),
    "stop.timed_out": (
        "A destination or a processor did not return in time.",
        "Find what blocked, or allow more with `stop_seconds`. Records in flight are read again.",
    ),
}
"""By code: what causes the error most often, and what to do."""

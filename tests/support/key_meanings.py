"""What the keys of YAML, the variables of the environment and the files of a project mean, for the reference pages.

The names themselves are found in the code: `reference_pages.py` fails where one is missing here, or is here alone.
"""

SAME, OURS = "the same", "no"

YAML_HEAD = """# YAML

A pipeline may be written in the YAML of [Conduit](https://conduit.io), format 2.0 to 2.2, in place of Python. `run`,
`check`, `graph` and `serve` take such files.
`check` reports every problem with line and column. For editors, `conduit-py plugins schema` prints the JSON schema.

```yaml
version: 2.2
pipelines:
  - id: orders
    connectors:
      - id: shop
        type: source
        plugin: builtin:generator
        settings: {recordCount: 3, format.type: structured, format.options.id: int}
      - id: lake
        type: destination
        plugin: builtin:file
        settings: {path: ./orders.jsonl}
    processors:
      - id: mark
        plugin: field.set
        settings: {field: .Metadata.shop, value: web}
    dead-letter-queue: {plugin: journal, window-size: 0}
```

## What differs from Conduit

- Keys that Conduit does not have are marked below. A file with them is no longer one for Conduit.
- Settings of plugins have Conduit's names, or those of our [connectors](connectors/README.md) and
  [processors](processors/README.md). One that would change the data and is not
  known is a problem; one that concerns only how Conduit works inside is a warning.
- A plugin is found by its name. `builtin:` and `standalone:` and a version are read; the version has no effect and is
  a warning.
- Format 1 is not read. The problem says how to write it as 2.2.
- A variable that is not set is a problem, and not an empty text. `$NAME` without braces stays as it is, with a warning.
- A functional difference between two plugins of one name is in [connectors](../../connectors/README.md) and
  [processors](../../processors/README.md).

## References

| written | means |
|---|---|
| `${NAME}`, `${NAME:-default}` | a variable of the environment, anywhere in a value |
| `env:NAME`, `file:/path` | a variable, the content of a file, as a whole value |
| `exec:…`, `vault:…`, `aws:…`, `gcp:…` | a [secret](../how-to/keep-secrets.md) from elsewhere, as a whole value |
| `$$` | a dollar |

Values that come from references are secrets: they are masked in logs, problems and the API."""

_ID = "letters, digits, `-`, `_`, `:` and `.`; another id is another one, without the position of the first"

YAML_KEYS: dict[str, dict[str, tuple[str, str]]] = {
    "document": {
        "version": ("2.0, 2.1 or 2.2; 2.2, with a warning, if it is missing", "the same; also 1.x"),
        "pipelines": ("a list; required", SAME),
    },
    "pipelines[]": {
        "id": (f"required; {_ID}", SAME),
        "status": ("`running` (default) or `stopped`: whether a server starts it", SAME),
        "name": ("a name for people; the id by default. Metrics have the id", "also in metrics"),
        "description": ("text for people", SAME),
        "connectors": ("a list with at least one source and one destination", SAME),
        "processors": ("a list; all records pass them in this order", SAME),
        "dead-letter-queue": ("where refused records go; without it the first one stops the pipeline", SAME),
        "delivery": ("`at_least_once` (default), `exactly_once` or `at_most_once`", OURS),
        "transaction": ("how much an exactly-once pipeline commits at once", OURS),
        "engine": ("`trio` (default) or `spark`", OURS),
        "spark": ("the cluster; needs `engine: spark`", OURS),
    },
    "pipelines[].connectors[]": {
        "id": (f"required; {_ID}", SAME),
        "type": ("`source` or `destination`; required", SAME),
        "plugin": ("the name of a [connector](connectors/README.md); required", "the same, with a version"),
        "name": ("read, and used nowhere", "shown"),
        "settings": ("options of the plugin; all values are text", SAME),
        "processors": ("for the records of this connector alone", SAME),
        "rate": ("how much it reads or writes in a second", "`sdk.rate.…` in settings, which works too"),
        "atomic": ("of a source: groups of its records are committed whole", OURS),
        "schedule": ("of a source: when to run, as five fields of cron", OURS),
        "timezone": ("of a source: the time zone of `schedule`", OURS),
        "window": ("of a source: how many records may be in flight", OURS),
        "batch-size": ("how many records are read or written at once", "`sdk.batch.size` in settings, which works too"),
        "batch-bytes": ("of a destination: how many bytes are written at once", OURS),
        "batch-seconds": (
            "of a destination: how long a batch may wait",
            "`sdk.batch.delay` in settings, which works too",
        ),
    },
    "pipelines[].connectors[].rate": {
        "records-per-second": ("records a second", OURS),
        "bytes-per-second": ("bytes a second", OURS),
        "burst": ("the most records at once after a pause; those of a second by default", OURS),
    },
    "processors[]": {
        "id": (f"required; {_ID}", SAME),
        "plugin": ("the name of a [processor](processors/README.md); required", SAME),
        "condition": ("a template or an expression in CEL: which records it gets", "a template"),
        "settings": ("options of the plugin", SAME),
        "workers": ("how many run in parallel; order is kept", SAME),
        "where": ("where workers run: `thread` (default) or `process`, each in one of its own", OURS),
        "batch-size": ("how many records are processed together; with `batch-seconds`", OURS),
        "batch-seconds": ("how long records wait for others before it", OURS),
        "state-cache-bytes": ("about how much of its state is in memory; the rest is read from the store", OURS),
        "type": ("the old name of `plugin`", "deprecated too"),
    },
    "pipelines[].dead-letter-queue": {
        "plugin": ("a destination, or `journal`: kept with the state; `log` by default", "a destination"),
        "settings": ("options of the plugin", SAME),
        "window-size": ("of how many records refusals are counted; 0 sets no limit, 1 by default", SAME),
        "window-nack-threshold": ("how many of them may be refused; 0 by default", SAME),
    },
    "pipelines[].transaction": {
        "max-seconds": ("how long a transaction may be open", OURS),
        "max-records": ("how many records it may have", OURS),
        "max-bytes": ("how many bytes it may have, by estimate", OURS),
        "min-seconds": ("how long it stays open at least", OURS),
    },
    "pipelines[].spark": {
        "master": ("the cluster, as `local[2]` or `spark://host:7077`", OURS),
        "conf": ("settings of Spark", OURS),
        "start-seconds": ("how long Spark may take to start", OURS),
    },
}

ENVIRONMENT = {
    "CONDUIT_CHILD_OBSERVER": "set by a server for its own processes, with `--observe otel`; not for you to set",
    "CONDUIT_API_TOKEN": "a token: for `serve` one of the role `admin`, for the other commands the one they send",
    "CONDUIT_EXEC_SECRETS": "1 lets pipeline files in YAML read secrets from commands, by `exec:`",
    "CONDUIT_KILL_AT": "only for tests of crashes: the crash point at which the process kills itself",
    "CONDUIT_SEED": "only for tests: the one seed of simulated runs",
    "CONDUIT_TLS_CA": "certificates that the commands trust, as `--tls-ca`",
    "CONDUIT_TLS_CERT": "the certificate of the client, as `--tls-cert`",
    "CONDUIT_TLS_KEY": "its key, as `--tls-key`",
    "CONDUIT_URL": "where the commands find the server, as `--url`; `http://127.0.0.1:8080` by default",
}

FILES = {
    ".conduit/state/": "positions, state of processors and dead letters, for `run` and `serve`; below the working "
    "directory, unless `--state` names another place. Keep it: without it everything is read again",
    "pipelines/*.py, *.yaml": "what `serve --pipelines pipelines` runs. Modules beside them may be imported",
    "tests/": "where `conduit-py init` puts the first test; nothing reads it but pytest",
    "tokens": "any name: the file of `serve --token-file`, a role and a token a line, mode 0600",
}

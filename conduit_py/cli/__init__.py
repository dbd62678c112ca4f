"""The command line.

`main.py` has the commands for files, `server_commands.py`, `storage_commands.py` and `spark_commands.py` the others:
their arguments and help, with few imports, because `--help` must answer at once. What a command does is in the module
of its noun and imported when it is called: `check.py`, `run.py` (with `result.py`, `display.py`), `serve.py`,
`doctor.py` (with `machine_checks.py`), `templates.py`, `installed.py`, `mcp.py`; through `client.py` to a server
`pipelines.py`, `dead_letters.py`, `top.py`, `tap.py`; and `journal.py`, `state.py`. All print and log with
`output.py`; errors are printed by `errors.py`.
"""

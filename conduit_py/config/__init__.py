"""From files to pipelines.

Read in this order: `loaded` (what loading gives), `load` (a file, a folder), `code_trust` (which files may be
executed), `python_file`, then for YAML `yaml_file`, `yaml_document` (with the problems of a file), `yaml_section` and
`yaml_nodes`, whose settings become options in `conduit_settings` and `translation`. `interpolation` replaces
references to values that come from elsewhere. `yaml_schema` describes the keys for editors. `definitions` reads a
folder again when its files change, or modules that they import from there.
"""

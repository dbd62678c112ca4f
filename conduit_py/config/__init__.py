"""From files to pipelines.

Read in this order: `loaded` (what loading gives), `load` (a file, a folder), `python_file`, then for YAML `yaml_file`,
`yaml_document` (with the problems of a file), `yaml_section` and `yaml_nodes`, whose settings become
options in `conduit_settings` and `translation`. `interpolation` and `secrets` deal with values that come from
elsewhere. `definitions` reads a folder again when its files change, or modules that they import from there.
"""

"""From files to pipelines.

Read in this order: `loaded` (what loading gives), `load` (a file, a folder), `python_file`, then for YAML `yaml_file`,
`yaml_document`, `yaml_section`, `yaml_pipeline`, `yaml_nodes` and `yaml_plugin`, whose settings become options in
`settings/`. `interpolation` and `secrets` deal with values that come from elsewhere; `diagnostics` collects what is
wrong with a file. `definitions` reads a folder again when its files change, or modules that they import from there.
"""

"""`jsonschema.decode` and `jsonschema.encode`: JSON with the schemas of a registry."""

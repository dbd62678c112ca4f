"""Go templates over a record, as Conduit's conditions and values have them: a safe subset, compiled once."""

"""Settings: schema, origins, rule grammar and merge. Pure: no I/O."""

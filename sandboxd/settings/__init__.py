"""Settings: schema, origins, rule grammar and merge. Pure: nothing here reads a file or the environment."""

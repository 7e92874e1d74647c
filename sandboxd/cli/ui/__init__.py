"""`sandboxd ui`: the five views of a daemon in a terminal, with keys that decide."""

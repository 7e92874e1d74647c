"""`sandboxd run`."""

"""Relations between absolute paths as text. Pure."""


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is this directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")

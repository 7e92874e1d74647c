"""Relations between absolute paths as text. Pure."""

import unicodedata


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is this directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def caseless(text: str) -> str:
    """Return the form in which APFS compares names: canonical caseless matching of Unicode."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())

"""Files that this process executes and imports, which no command may write."""

from __future__ import annotations

import importlib.machinery
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator

from sandboxd_client.programs import SYSTEM_TREES, is_in

_SHARED_PREFIXES = frozenset({"/", "/usr", "/usr/local", "/opt/homebrew", "/opt/local"})
"""Prefixes in which only Python's own directories are protected."""
_LIBRARIES = ("site-packages", "dist-packages")
_START_UP = "sitecustomize"
_LATER = (
    *("annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"),
    *("tree_sitter", "tree_sitter_bash"),
)
"""Libraries that are imported for the first settings and for the first shell line that is read."""


def own_code(*others: str) -> tuple[str, ...]:
    """Return the code of this process and `others`.

    That is the interpreter, its standard library and site-packages, modules imported from elsewhere, the script and the
    units that start the daemon. The paths are absolute, and none is below another. Those that do not exist must not
    appear."""
    script = sys.argv[0] if os.path.isabs(sys.argv[0]) else ""
    found = [*others, *_prefixes(), *_searched(), *_interpreters(), *_imported(), *_imported_later(), *_units(), script]
    return tuple(_outermost(path for path in found if os.path.isabs(path)))


def source_trees() -> tuple[str, ...]:
    """Return searched directories with other files (editable installations).

    Only modules imported from there are protected, and the name that Python imports at each start."""
    installed = [*_prefixes(), *sysconfig.get_paths().values()]
    return tuple(
        entry
        for entry in sys.path
        if os.path.isdir(entry)
        and not any(part in _LIBRARIES for part in entry.split("/"))
        and not any(is_in(entry, directory) for directory in installed)
    )


def linked_files() -> tuple[str, ...]:
    """Return imported files with more hard links, as uv makes to its cache."""
    files = [*(getattr(module, "__file__", None) for module in list(sys.modules.values())), *_imported_later()]
    return tuple(file for file in dict.fromkeys(files) if isinstance(file, str) and _is_linked(file))


def _is_linked(path: str) -> bool:
    try:
        state = os.stat(path)
    except OSError:
        return False
    is_owned = state.st_uid == os.geteuid() and not any(is_in(os.path.realpath(path), tree) for tree in SYSTEM_TREES)
    return is_owned and stat.S_ISREG(state.st_mode) and state.st_nlink > 1


def _prefixes() -> list[str]:
    found = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    return [os.path.abspath(path) for path in found if os.path.abspath(path) not in _SHARED_PREFIXES]


def _searched() -> Iterator[str]:
    trees = source_trees()
    yield from (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    yield from (entry for entry in sys.path if entry not in trees)
    if _START_UP in sys.modules:
        return  # found in a directory that is searched earlier
    for tree in trees:
        yield os.path.join(tree, _START_UP)
        yield from (os.path.join(tree, _START_UP + suffix) for suffix in importlib.machinery.all_suffixes())


def _interpreters() -> Iterator[str]:
    """Yield the interpreters, and what Python looks for beside and above them to find its library."""
    for path in (sys.executable, getattr(sys, "_base_executable", "")):
        for name in (path, os.path.realpath(path)) if path else ():
            yield name
            if not any(is_in(name, tree) for tree in SYSTEM_TREES):
                yield from _looked_for(name)


def _looked_for(interpreter: str) -> Iterator[str]:
    yield f"{interpreter}._pth"
    directory = os.path.dirname(interpreter)
    yield from (os.path.join(place, "pyvenv.cfg") for place in (directory, os.path.dirname(directory)))
    yield from (os.path.join(directory, name) for name in ("pybuilddir.txt", "Modules/Setup", "Modules/Setup.local"))
    library = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    while directory != "/" and not any(is_in(directory, prefix) for prefix in _prefixes()):
        yield from (
            os.path.join(directory, sys.platlibdir, name) for name in (library, f"{library.replace('.', '')}.zip")
        )
        directory = os.path.dirname(directory)


def _imported() -> Iterator[str]:
    """Yield the paths of imported top-level modules and packages."""
    for name, module in list(sys.modules.items()):
        if "." in name:
            continue
        yield from map(os.path.abspath, getattr(module, "__path__", ()))
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield os.path.abspath(file)


def _imported_later() -> Iterator[str]:
    """Yield the paths of packages that are imported when they are needed."""
    for name in _LATER:
        if (spec := importlib.machinery.PathFinder.find_spec(name)) is not None:
            yield from map(os.path.abspath, spec.submodule_search_locations or ())
            if spec.origin is not None:
                yield os.path.abspath(spec.origin)


def _units() -> Iterator[str]:
    """Yield the unit directories that variables name."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        if os.path.isabs(place := os.environ.get(name, "")):
            yield os.path.join(place, "systemd", "user")


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not kept or not any(is_in(path, above) for above in kept):
            kept.append(path)
    return kept

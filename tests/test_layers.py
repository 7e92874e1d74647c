"""The line through the code: who may import whom, and what pure code must not touch.

`MAY_IMPORT` is the table of the design. A new import that it does not allow needs either another place for the code,
or a row in `EXCEPTIONS` with its reason, in the same change. A row that nothing needs fails too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Parts of a package that are layers of their own: the rest of it does not import them.
APART = ("sandboxd.settings.files",)

# Each rule carries its origin, so everything that handles a rule may name one.
_ORIGIN = "sandboxd.settings.origins"

# Sizes and durations as text.
_QUANTITIES = "sandboxd.quantities"

# Facts of the kernel about processes, read in one place.
_PROCESSES = "sandboxd.processes"

# How the daemon runs programs.
_CHILDREN = "sandboxd.children"

# Each part of a daemon makes its own record for the next daemon.
_HANDOVER = "sandboxd.handover"

# The relations of paths as text, and inotify(7), each of which exists once.
_PATHS = "sandboxd.paths"
_INOTIFY = "sandboxd.settings.files.inotify"

# One place finds programs, for the client too, which imports nothing of the daemon.
_PROGRAMS = "sandboxd_client.programs"

# How classes of records are made, everywhere.
_RECORDS = "sandboxd_client.records"

# Package or module: what of this project it may import beside itself. The longest matching row counts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "sandboxd": (),  # sandboxd/__init__.py: the version, and where the code is
    "sandboxd.errors": (),
    "sandboxd.paths": (),
    _CHILDREN: (),
    _PROCESSES: (),
    _QUANTITIES: (),
    "sandboxd.handover": ("sandboxd.errors",),
    "sandboxd.settings": ("sandboxd.errors", _QUANTITIES),
    "sandboxd.settings.files": ("sandboxd.errors", "sandboxd.settings"),
    "sandboxd.policy": ("sandboxd.errors", _PATHS, "sandboxd.settings"),
    "sandboxd.plan": ("sandboxd.errors", _PATHS, "sandboxd.policy", _ORIGIN),
    "sandboxd.host": (
        "sandboxd.errors", _HANDOVER, _PATHS, _INOTIFY, "sandboxd.plan.host_facts", "sandboxd.plan.host_queries",
        _PROGRAMS,
    ),
    "sandboxd.backends": (
        "sandboxd.errors", _CHILDREN, _HANDOVER, _PATHS, _PROCESSES, "sandboxd.policy", "sandboxd.plan", _ORIGIN,
        _QUANTITIES,
    ),
    "sandboxd.proxy": ("sandboxd.errors", _HANDOVER, _QUANTITIES, "sandboxd.policy"),
    "sandboxd.runtime": (
        "sandboxd.errors", "sandboxd.policy", "sandboxd.plan", "sandboxd.backends.base", "sandboxd.proxy", _ORIGIN,
        _CHILDREN, _HANDOVER, _PATHS, _PROCESSES, _QUANTITIES,
    ),
    "sandboxd.daemon": (
        "sandboxd.__version__", _CHILDREN, _HANDOVER, _PROGRAMS, _PATHS, "sandboxd.errors", "sandboxd.settings",
        "sandboxd.policy", "sandboxd.host", "sandboxd.backends.base", "sandboxd.proxy.host_addresses",
        "sandboxd.runtime",
    ),
    "sandboxd.rpc": (
        "sandboxd.__version__", "sandboxd.PACKAGE", _HANDOVER, _PROCESSES, "sandboxd.daemon", "sandboxd_client.wire",
        # The records that requests and answers are made of, and how text from a sandbox is shown.
        "sandboxd.errors", _ORIGIN, "sandboxd.settings.merge", "sandboxd.settings.problems",
        "sandboxd.policy.decision", "sandboxd.policy.violation", "sandboxd.policy.hosts.host_patterns",
        "sandboxd.policy.display", "sandboxd.policy.explain.guidance", "sandboxd.policy.hosts.publication",
        "sandboxd.policy.hosts.parent_proxies", "sandboxd.host.resolve",
        "sandboxd.runtime.sessions", "sandboxd.runtime.prompts",
        "sandboxd.runtime.session", "sandboxd.runtime.session_records", "sandboxd.runtime.wrap",
        "sandboxd.runtime.events", "sandboxd.runtime.credentials",
        "sandboxd.policy.paths.wide_places", "sandboxd.policy.commands.exclusion",
        "sandboxd.proxy.fair_share",
    ),
    # What screens show: answers of the daemon in, rows out.
    "sandboxd.screens": ("sandboxd.policy.display", "sandboxd_client.wire.messages"),
    "sandboxd.cli": ("sandboxd.__version__", "sandboxd.PACKAGE", "sandboxd_client", "sandboxd.screens"),
    "sandboxd.cli.control.serve": ("sandboxd_client", "sandboxd.app.process"),
    # The settings of an editor have comments.
    "sandboxd.cli.hooks.editor_terminals": (
        "sandboxd.errors", "sandboxd.settings.jsonc", "sandboxd.settings.jsonc_edit",
    ),
    # Settings of other programs are converted without a daemon.
    "sandboxd.cli.rules.import_settings": (
        "sandboxd.errors", "sandboxd.settings.jsonc", "sandboxd.settings.foreign",
    ),
    "sandboxd.cli.rules.export_settings": ("sandboxd.settings.foreign",),
    # A log is verified where it was copied to, without a daemon.
    "sandboxd.cli.audit": ("sandboxd_client", "sandboxd.daemon.audit.audit_chain"),
    "sandboxd.cli.web": ("sandboxd_client", "sandboxd.web"),
    "sandboxd.web": ("sandboxd_client", "sandboxd.screens"),
    "sandboxd.app": ("sandboxd", "sandboxd_client"),
    "sandboxd.__main__": ("sandboxd.cli",),
    "sandboxd_client": (),
}  # fmt: skip

# (importing module, imported module): why the table does not fit.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("sandboxd.cli.rules.settings_files", "sandboxd.daemon.settings.linting"): (
        "a broken file may keep the daemon from starting"
    ),
}

# Each module for a framework of agents.
_INTEGRATIONS = "sandboxd_client.integrations"

# Libraries from outside, each in the one or two places that are about them.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "pydantic": ("sandboxd.settings.schema", "sandboxd.settings.layer", "sandboxd.cli.mcp"),
    "idna": ("sandboxd.policy.hosts.host_patterns",),
    "publicsuffixlist": ("sandboxd.policy.hosts.public_suffixes",),
    "tree_sitter": ("sandboxd.policy.commands",),
    "tree_sitter_bash": ("sandboxd.policy.commands",),
    "watchfiles": ("sandboxd.settings.files.watching",),
    "jsonrpcserver": ("sandboxd.rpc",),
    "structlog": ("sandboxd.daemon", "sandboxd.rpc", "sandboxd.app"),
    "prometheus_client": ("sandboxd.daemon.metrics", "sandboxd.cli.otlp"),
    "opentelemetry": ("sandboxd.cli.otlp",),
    "mcp": ("sandboxd.cli.mcp",),
    "textual": ("sandboxd.cli.ui",),
    "rich": ("sandboxd.cli.ui",),
    "h2": ("sandboxd.proxy.http2", "sandboxd.proxy.tls"),
    "aiohttp": ("sandboxd.web.server", "sandboxd.web.channel"),
    "cryptography": ("sandboxd.proxy.tls", "sandboxd.web.certificate"),
    "OpenSSL": ("sandboxd.proxy.tls",),
    "agents": (f"{_INTEGRATIONS}.openai_agents", f"{_INTEGRATIONS}.openai_sandbox"),
    "claude_agent_sdk": (f"{_INTEGRATIONS}.claude_agent",),
    "crewai": (f"{_INTEGRATIONS}.crewai",),
    "deepagents": (f"{_INTEGRATIONS}.deepagents",),
    "langchain": (f"{_INTEGRATIONS}.langchain",),
    "langchain_core": (f"{_INTEGRATIONS}.langchain",),
    "pydantic_ai": (f"{_INTEGRATIONS}.pydantic_ai",),
    "smolagents": (f"{_INTEGRATIONS}.smolagents",),
}

# Pure: the same answer for the same arguments, whatever the machine. Paths are text there (posixpath).
_PURE = ("errors", "paths", "quantities", "handover", "settings", "policy", "plan", "screens")
PURE_PACKAGES = tuple(f"sandboxd.{name}" for name in _PURE)
TOUCHES_THE_WORLD = {
    "asyncio", "ctypes", "datetime", "fcntl", "glob", "http", "io", "locale", "logging", "multiprocessing", "os",
    "platform", "pty", "pwd", "grp", "random", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "ssl", "subprocess", "sys", "tempfile", "termios", "threading", "time", "urllib", "uuid",
}  # fmt: skip
PURE_PATHLIB = {"PurePath", "PurePosixPath"}
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}

LONGEST_FILE = 600
MOST_FILES = 14
LONG_FILES: dict[str, str] = {}  # path: why it is one file
EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers|common|managers?|misc)(_|$)")


@dataclass(frozen=True, slots=True)
class Import:
    """`by` imports `target` (for `from a import b` that is `a.b`) in line `line` of its file."""

    by: str
    target: str
    line: int


def sources() -> Iterator[tuple[str, Path]]:
    """(module name, file) of everything that is installed."""
    for base, package in ((ROOT, "sandboxd"), (ROOT / "client", "sandboxd_client")):
        for file in sorted((base / package).rglob("*.py")):
            parts = file.relative_to(base).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imports_of(module: str, text: str, *, is_package: bool) -> Iterator[Import]:
    """Every import in the text, wherever it stands: in a function and below TYPE_CHECKING as well."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package and node.level == 1 else -(node.level - is_package)]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield Import(module, f"{base}.{alias.name}", node.lineno)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def row_of(module: str) -> str:
    return max((row for row in MAY_IMPORT if within(module, row)), key=len)


def package_of(module: str) -> str:
    """The package a module belongs to, below `sandboxd`: what it may import freely."""
    if apart := [package for package in APART if within(module, package)]:
        return apart[0]
    return ".".join(module.split(".")[:2]) if within(module, "sandboxd") else "sandboxd_client"


def forbidden(found: Import) -> str | None:
    """Why this import is not allowed; None when it is."""
    top = found.target.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top not in ("sandboxd", "sandboxd_client"):
        if any(within(found.by, place) for place in LIBRARIES.get(top, ())):
            return None
        return f"{top} is not a library for this place (LIBRARIES)"
    if within(found.target, _RECORDS):
        return None
    if found.by != "sandboxd" and package_of(found.target) == package_of(found.by):
        return None
    if any(within(found.target, allowed) for allowed in MAY_IMPORT[row_of(found.by)]):
        return None
    if any(found.by == by and within(found.target, target) for by, target in EXCEPTIONS):
        return None
    return f"the row {row_of(found.by)!r} of MAY_IMPORT does not allow it"


def impurities(module: str, text: str) -> Iterator[str]:
    """What pure code does that depends on more than its arguments."""
    for found in imports_of(module, text, is_package=False):
        top, _, name = found.target.partition(".")
        if (
            top in TOUCHES_THE_WORLD
            and found.target not in ("urllib.parse",)
            and not found.target.startswith("urllib.parse.")
        ):
            yield f"{module}:{found.line} imports {found.target}"
        if top == "pathlib" and name not in PURE_PATHLIB:
            yield f"{module}:{found.line} imports {found.target}: PurePosixPath or posixpath do not look at the disk"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{module}:{node.lineno} calls {node.func.id}()"


def all_imports() -> list[Import]:
    return [
        found
        for module, file in sources()
        for found in imports_of(module, file.read_text(), is_package=file.name == "__init__.py")
    ]


def test_imports_follow_the_table() -> None:
    wrong = [
        f"{found.by}:{found.line} imports {found.target}: {reason}"
        for found in all_imports()
        if (reason := forbidden(found)) is not None
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed_and_has_a_reason() -> None:
    found = all_imports()
    for (by, target), reason in EXCEPTIONS.items():
        assert len(reason) > 20, f"{by} -> {target}: say why"
        assert any(one.by == by and within(one.target, target) for one in found), f"{by} -> {target}: no longer needed"


def test_pure_code_touches_nothing() -> None:
    wrong = [
        line
        for module, file in sources()
        if any(within(module, package) for package in PURE_PACKAGES) and package_of(module) not in APART
        for line in impurities(module, file.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short_or_say_why() -> None:
    for module, file in sources():
        lines = len(file.read_text().splitlines())
        name = str(file.relative_to(ROOT))
        assert lines <= LONGEST_FILE or LONG_FILES.get(name), f"{name} ({module}) has {lines} lines: where is the seam?"
    assert all((ROOT / name).exists() for name in LONG_FILES)


def test_every_row_is_needed() -> None:
    found = all_imports()
    idle = [
        f"{row} -> {target}"
        for row, targets in MAY_IMPORT.items()
        for target in targets
        if not any(
            row_of(one.by) == row and within(one.target, target) and package_of(one.target) != package_of(one.by)
            for one in found
        )
    ]
    idle += [row for row in MAY_IMPORT if not any(row_of(module) == row for module, _ in sources())]
    idle += [
        f"{library} in {place}"
        for library, places in LIBRARIES.items()
        for place in places
        if not any(within(one.by, place) and one.target.split(".")[0] == library for one in found)
    ]
    assert not idle, "\n".join(idle)


def test_no_folder_holds_too_many_files() -> None:
    counts: dict[Path, int] = {}
    for _, file in sources():
        if file.name not in ("__init__.py", "__main__.py"):
            counts[file.parent] = counts.get(file.parent, 0) + 1
    large = {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > MOST_FILES}
    assert not large, f"more than {MOST_FILES} files in one folder: {large}"


# Modules that import each other, also for an annotation only: each with what it would cost to cut the circle.
CIRCLES: dict[frozenset[str], str] = {}


def circles(imports: Iterable[Import], modules: Collection[str]) -> set[frozenset[str]]:
    """The sets of modules that import each other. A package that re-exports what is in it imports nothing here."""
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for one in imports:
        target = one.target if one.target in graph else one.target.rpartition(".")[0]
        if target in graph and target != one.by and one.by != "sandboxd_client":
            graph[one.by].add(target)
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen, waiting = set[str](), list(graph[module])
        while waiting:
            if (found := waiting.pop()) not in seen:
                seen.add(found)
                waiting += graph[found]
        reached[module] = seen
    return {
        frozenset({one for one in reached[module] if module in reached[one]} | {module})
        for module in graph
        if module in reached[module]
    }


def test_no_modules_import_each_other() -> None:
    found = {frozenset(one.rpartition(".")[2] for one in circle) for circle in circles(all_imports(), dict(sources()))}
    assert found <= CIRCLES.keys()


def test_a_circle_is_seen() -> None:
    imports = [Import("a", "b.x", 1), Import("b", "c", 1), Import("c", "a", 1), Import("d", "a", 1)]
    assert circles(imports, "abcd") == {frozenset("abc")}


# Where imports for annotations alone wait below TYPE_CHECKING, and the milliseconds that this saves.
LIBRARIES_LATE = ("sandboxd.policy.commands", "sandboxd.proxy.tls")
LATE_IMPORTS = {
    "sandboxd.cli": "every `sandboxd run` would import typing",
    "sandboxd_client": "every `sandboxd run` would import typing",
    "sandboxd.proxy.tls.authority": "the library of the extra may be absent, and takes 0.3 s to import",
    "sandboxd.policy.commands": "tree-sitter is loaded for the first command that needs it",
    "sandboxd.settings.layer": "a start without settings would import pydantic, which takes 70 ms",
    "sandboxd.policy.build_network": "the same",
    "sandboxd.policy.build_credentials": "the same",
}


def programs_of_asyncio(text: str) -> Iterator[int]:
    """The lines that start or name a program in the way of asyncio."""
    for found in imports_of("sandboxd", text, is_package=True):
        if within(found.target, "asyncio") and "subprocess" in found.target:
            yield found.line
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (
            "subprocess_" in node.attr or ast.unparse(node) == "asyncio.subprocess"
        ):
            yield node.lineno


def test_the_daemon_runs_programs_by_children_alone() -> None:
    """sandboxd/children.py says why; the client hands out what asyncio makes."""
    found = [(module, line) for module, file in sources() for line in programs_of_asyncio(file.read_text())]
    assert not [one for one in found if within(one[0], "sandboxd")]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("import asyncio\nasyncio.create_subprocess_exec('true')", False),
        ("asyncio.create_subprocess_shell('true')", False),
        ("loop.subprocess_exec(make, 'true')", False),
        ("from asyncio import create_subprocess_exec", False),
        ("from asyncio import subprocess", False),
        ("import asyncio.subprocess", False),
        ("from asyncio.subprocess import Process", False),
        ("def f(one: asyncio.subprocess.Process): pass", False),
        ("import subprocess\nsubprocess.Popen(['true'])", True),
        ("from sandboxd.children import Child", True),
    ],
)
def test_a_program_of_asyncio_is_seen(text: str, allowed: bool) -> None:
    assert (not list(programs_of_asyncio(text))) is allowed


def test_imports_for_annotations_are_plain_except_costly_ones() -> None:
    late = {
        module: "from typing import TYPE_CHECKING" in text
        for module, file in sources()
        if "\nif TYPE_CHECKING:" in (text := file.read_text())
    }
    assert not [module for module in late if not any(within(module, place) for place in LATE_IMPORTS)]
    assert not [module for module, typing in late.items() if typing and not module.startswith(LIBRARIES_LATE)]


def test_a_class_name_stands_for_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for module, file in sources():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    twice = [f"{name}: {', '.join(modules)}" for name, modules in sorted(homes.items()) if len(modules) > 1]
    assert not twice, "\n".join(twice)


def test_names_say_what_is_inside() -> None:
    wrong = [module for module, _ in sources() if any(EMPTY_NAMES.search(part) for part in module.split("."))]
    assert not wrong


@pytest.mark.parametrize(
    ("by", "text", "allowed"),
    [
        ("sandboxd.policy.hosts.host_patterns", "from sandboxd.settings.origins import Origin", True),
        ("sandboxd.policy.hosts.host_patterns", "from sandboxd.plan import plan", False),
        ("sandboxd.policy.hosts.host_patterns", "def f():\n    import sandboxd.proxy.gate", False),
        ("sandboxd.policy.hosts.host_patterns", "from . import host_decisions", True),
        ("sandboxd.policy.hosts.host_patterns", "from ...runtime import session", False),
        ("sandboxd.settings.merge", "import pydantic", False),
        ("sandboxd.settings.schema", "import pydantic", True),
        ("sandboxd.settings.merge", "from sandboxd.settings.files import reading", False),
        ("sandboxd.settings.files.reading", "from sandboxd.settings.layer import Layer", True),
        ("sandboxd.host.fact_source", "from sandboxd.plan.host_queries import HostQueries", True),
        ("sandboxd.host.fact_source", "from sandboxd.plan.filesystem.mounts import Mount", False),
        ("sandboxd.runtime.session", "from sandboxd.backends.base import LaunchSpec", True),
        ("sandboxd.runtime.session", "from sandboxd.backends.linux import backend", False),
        ("sandboxd.cli.execution.run", "from sandboxd_client import Client", True),
        ("sandboxd.cli.execution.run", "from sandboxd.policy.model import Policy", False),
        ("sandboxd_client.wire.framing", "import json, struct", True),
        ("sandboxd_client.wire.framing", "import sandboxd.errors", False),
        ("sandboxd_client.wire.framing", "import aiohttp", False),
    ],
)
def test_the_table_is_read_as_meant(by: str, text: str, allowed: bool) -> None:
    reasons = [forbidden(found) for found in imports_of(by, text, is_package=False)]
    assert (reasons == [None] * len(reasons)) is allowed


@pytest.mark.parametrize(
    ("text", "pure"),
    [
        ("import posixpath\nfrom pathlib import PurePosixPath\nfrom urllib.parse import urlsplit", True),
        ("from os import path", False),
        ("from pathlib import Path", False),
        ("import pathlib", False),
        ("def f():\n    import time", False),
        ("value = open('x')", False),
        ("value = opener('x')", True),
    ],
)
def test_purity_is_seen(text: str, pure: bool) -> None:
    assert (not list(impurities("sandboxd.policy.x", text))) is pure

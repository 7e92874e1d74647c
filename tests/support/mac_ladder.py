"""Steps 2 to 6 of the first run on a Mac: what the system says, without the daemon. Each step writes lines of a report
and none ends another.

2. every construct and every rule of a typical profile is compiled alone; what is refused is named
3. which description of the order of rules is true
4. primitives, each as it went, beside what docs/macos.md expects
5. interfaces of the system library that Apple does not document
6. how refusals come through `log stream`
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sandboxd.backends.macos.probe import TYPES
from sandboxd.backends.macos.seatbelt.dialect import CONSTRUCTS, whole_probe
from support.sbpl import Semantics
from support.sbpl_reader import Form, read_profile

Compile = Callable[[str, Mapping[str, str], tuple[str, ...]], tuple[int, str]]
"""Runs a command under a profile with parameters; status and last complaint."""

STEP_S = 20


def sandbox_exec(text: str, parameters: Mapping[str, str], command: tuple[str, ...]) -> tuple[int, str]:
    """At a terminal of the command's own."""
    words = ["/usr/bin/sandbox-exec", "-p", text, *(f"-D{name}={value}" for name, value in parameters.items())]
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [*words, "--", *command], stdin=slave, capture_output=True, text=True, timeout=STEP_S, errors="replace",
            start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return 255, str(error)
    finally:
        os.close(master)
        os.close(slave)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1][:300]


TRUE = ("/usr/bin/true",)


def compiled(run: Compile, text: str, parameters: Mapping[str, str]) -> Iterator[str]:
    """Step 2. `text` is a whole profile with its parameters."""
    for construct in CONSTRUCTS:
        status, words = run(*whole_probe([construct]), TRUE)
        yield f"{construct.name}: {'accepted' if status == 0 else f'REFUSED ({status}) {words}'}"
    status, words = run(text, parameters, TRUE)
    yield f"a whole profile: {'accepted' if status == 0 else f'REFUSED ({status}) {words}'}"
    refused = 0
    for form, line in _forms(text) if status else ():
        status, words = run(f"(version 1) (allow default) {form}", parameters, TRUE)
        if status:
            refused += 1
            yield f"  line {line} REFUSED ({status}) {words}: {' '.join(form.split())[:200]}"
            yield from _parts(run, form, parameters)
    if refused:
        yield f"  {refused} rules are refused"


def _forms(text: str) -> Iterator[tuple[str, int]]:
    """The text of each rule, and its line."""
    lines = text.splitlines()
    forms = [form for form in read_profile(text) if isinstance(form, Form) and form[0] in ("allow", "deny")]
    begins = sorted({form.line for form in forms})
    for at, begin in enumerate(begins):
        end = begins[at + 1] - 1 if at + 1 < len(begins) else len(lines)
        yield "\n".join(lines[begin - 1 : end]), begin


def _parts(run: Compile, form: str, parameters: Mapping[str, str]) -> Iterator[str]:
    """Each filter of a refused rule alone."""
    first, *rest = form.splitlines()
    head = first if first.count("(") > first.count(")") else ""
    for line in rest if head else ():
        filter_ = line.partition(";")[0].strip()
        while filter_.count(")") > filter_.count("("):
            filter_ = filter_[:-1]
        if filter_ and filter_.count("(") == filter_.count(")") and not filter_.startswith("(with"):
            status, words = run(f"(version 1) (allow default) {head.partition(';')[0]} {filter_})", parameters, TRUE)
            if status:
                yield f"    {filter_}: {words}"


_ORDERS = {
    (False, True): Semantics.LAST_MATCH,
    (True, True): Semantics.OPERATION_FIRST,
    (True, False): Semantics.FILTERED_FIRST,
}
_RULES = (
    '(allow file-read-data (literal (param "F"))) (deny file-read* (literal (param "F")))',
    '(deny file-read-data (literal (param "F"))) (allow file-read-data)',
)


def order(run: Compile, file: str) -> Iterator[str]:
    """Step 3. `file` is the real path of a readable file."""
    read = [run(f"(version 1) (allow default) {one}", {"F": file}, ("/bin/cat", file))[0] == 0 for one in _RULES]
    found = _ORDERS.get((read[0], read[1]))
    yield f"order of rules: {found.value if found else f'none of the known ones {read}'}"


PRIMITIVES = Path(__file__).resolve().parents[1] / "macos" / "primitives.txt"


def primitives(run: Compile, directory: Path) -> Iterator[str]:
    """Step 4: what the rules of `primitives.txt` do, added to `(allow default)`."""
    for number, block in enumerate(PRIMITIVES.read_text().strip().split("\n\n")):
        lines = block.split("\n")
        if len(lines) == 4:  # no rule: an empty line in the block
            lines.remove("")
        title, rule, command = (lines[0], "", lines[1]) if len(lines) == 2 else lines
        name, _, expected = title.partition(" ·")
        place = directory / str(number)
        (place / "dir").mkdir(parents=True)
        for file in ("Key", "caf\u00e9"):
            (place / file).write_text("key\n")
        os.link(place / "Key", place / "hard")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = os.path.realpath(place)
            port = str(listener.getsockname()[1])
            for mark, value in (("{d}", where), ("{p}", sys.executable), ("{port}", port), ("{types}", TYPES)):
                rule, command = rule.replace(mark, value), command.replace(mark, value)
            parameters = {"U": f"^{where}/b([sS]|\u017f)x$", "C": f"{where}/caf\u00e9"}
            status, words = run(f"(version 1) (allow default) {rule}", parameters, ("/bin/sh", "-c", command))
        found = "refused" if status else "allowed"
        yield f"{name}: {found} ({status}) {words}{'' if expected.strip() in ('', found) else '  UNEXPECTED'}"


def library() -> Iterator[str]:
    """Step 5."""
    loaded = ctypes.CDLL(None, use_errno=True)
    for name in ("sandbox_check", "proc_listpids", "launch_activate_socket", "confstr"):
        yield f"{name}: {'there' if hasattr(loaded, name) else 'MISSING'}"
    for number in (65536, 65537, 65538):
        try:
            yield f"confstr({number}): {os.confstr(number)}"
        except (OSError, ValueError) as error:
            yield f"confstr({number}): {error}"
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        for name, option, size in (("LOCAL_PEERCRED", 1, 76), ("LOCAL_PEERPID", 2, 4)):
            try:
                yield f"{name}: {here.getsockopt(0, option, size)[:12].hex()}"
            except OSError as error:
                yield f"{name}: {error}"
    yield f"kqueue: {'there' if hasattr(select, 'kqueue') else 'MISSING'}"


def log_stream(run: Compile, log: str = "/usr/bin/log", limit_s: float = 20.0) -> Iterator[str]:
    """Step 6. What comes, word by word, and how long after its cause."""
    suffix = f"sandboxd-smoke-{os.getpid()}"
    rule = '(deny file-read* (literal "/private/etc/hosts") (literal "/etc/hosts") (with message'
    profile = f'(version 1) (allow default) {rule} "{suffix}"))'
    words = [log, "stream", "--style", "compact", "--predicate", f'(eventMessage ENDSWITH "{suffix}")']
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as stream:
        assert stream.stdout is not None
        began, provoked, heard = time.monotonic(), 0, b""
        try:
            while time.monotonic() - began < limit_s and suffix.encode() not in heard.partition(b"\n")[2]:
                run(profile, {}, ("/bin/cat", "/etc/hosts"))
                provoked += 1
                if select.select([stream.stdout], [], [], 1.0)[0]:
                    data = os.read(stream.stdout.fileno(), 65536)
                    if not data:
                        break
                    heard += data
            yield f"after {time.monotonic() - began:.1f} s and {provoked} refusals:"
            yield from (f"  {line}" for line in heard.decode(errors="replace").splitlines()[:20])
        finally:
            stream.kill()
        yield f"status: {stream.wait()}"


def steps(run: Compile, directory: Path, profile: tuple[str, Mapping[str, str]], log: str = "/usr/bin/log") -> str:
    """All of them, as a part of the report. `profile` is a typical text with its parameters."""
    file = directory / "readable"
    file.write_text("x\n")
    parts: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("2. what compiles", lambda: compiled(run, *profile)),
        ("3. the order of rules", lambda: order(run, os.path.realpath(file))),
        ("4. primitives", lambda: primitives(run, directory / "primitives")),
        ("5. the system library", library),
        ("6. the log", lambda: log_stream(run, log)),
    ]
    lines: list[str] = []
    for title, step in parts:
        lines += ["", title]
        try:
            for line in step():
                lines.append(f"    {line}")
        except Exception as error:  # a report is what this is for
            lines.append(f"    ENDED: {type(error).__name__}: {error}")
    return "\n".join(lines) + "\n"

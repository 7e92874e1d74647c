#!/usr/bin/env python3
"""Builds the helper's three programs for both processors and writes SHA256SUMS.

    python vendor/seccomp/build.py            build into vendor/seccomp/{x86_64,aarch64}/
    python vendor/seccomp/build.py --into D   build into D/{x86_64,aarch64}/, as the test does that compares the bytes

The compiler is that of the package `ziglang` in exactly the version below, which brings the kernel's and musl's headers
for both processors: the same bytes come out on every machine, whatever the paths, the user and the time. Musl itself is
not linked, nor any other library: the programs are these few source files, and a build takes about two seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ZIGLANG = "0.13.0"
HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "apply-seccomp": ("apply-seccomp.c", "claim.c", "notifications.c", "verdicts.c", "reports.c", "connects.c",
                      "sockets.c", "unix.c", "search.c", "landlock.c", "guard.c", "modes.c", "say.c", "kernel.c"),
    "launch": ("launch.c", "streams.c", "say.c", "kernel.c"),
    "namespaces": ("namespaces.c", "kernel.c"),
    "front": ("front.c", "asked.c", "foreground.c", "json.c", "kernel.c"),
}  # fmt: skip

# Processor, and the name that the kernel gives to the folder of its headers.
PROCESSORS = {"x86_64": "x86", "aarch64": "aarch64"}

COMPILE = (
    "-std=gnu11",
    "-Os",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",  # what is not named is zero: that is the point of an initialiser
    "-Wno-gnu-zero-variadic-macro-arguments",
    "-ffreestanding",  # no C library
    "-fno-stack-protector",  # its support code is part of the C library
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fno-ident",
    "-fno-pic",
    "-fwrapv",  # an overflow has a result; and the result is smaller
    "-fno-jump-tables",
    "-g0",  # no debugging information, hence no paths
    "-flto",  # optimised as one program
    "-ffunction-sections",  # equal functions become one
)
SMALLEST = "#pragma clang attribute push(__attribute__((minsize)), apply_to = function)"  # a tenth less than -Os alone
# norelro: it is for a dynamic linker to act upon, and there is none.
LINK = (
    "-static", "--strip-all", "--build-id=none", "--icf=all", "--no-rosegment", "-z", "noexecstack", "-z", "norelro",
)  # fmt: skip
# What makes the smallest code: the level of the linker's optimisation; globals within a megabyte take one instruction.
SMALL = {"x86_64": (("--lto-O1",), ()), "aarch64": (("--lto-O2",), ("-mcmodel=tiny",))}


def compile_for(processor: str, target: Path) -> None:
    """Builds the program named as the file `target` is, mode 755. Raises CalledProcessError with zig's output."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None or importlib.metadata.version("ziglang") != ZIGLANG:
        raise SystemExit(f"build.py: needs the package ziglang=={ZIGLANG} (./dev venv installs it)")
    headers = Path(spec.origin).parent / "lib" / "libc" / "include"
    folders = (f"{processor}-linux-musl", "generic-musl", f"{PROCESSORS[processor]}-linux-any", "any-linux-any")
    includes = [word for folder in folders for word in ("-isystem", str(headers / folder))]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="apply-seccomp-") as scratch:
        # Caches of its own: what lies in somebody's home cannot change the result.
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{scratch}/global", "ZIG_LOCAL_CACHE_DIR": f"{scratch}/local"}

        def zig(*words: str, text: str = "") -> None:
            command = [sys.executable, "-m", "ziglang", *words]
            subprocess.run(command, cwd=HERE, env={**os.environ, **caches}, check=True, input=text, text=True)

        # In two steps, since a single one would build and link zig's own runtime library.
        compiled = [f"{scratch}/{source}.o" for source in PROGRAMS[target.name]]
        for source, made in zip(PROGRAMS[target.name], compiled, strict=True):
            text = f'{SMALLEST}\n#include "{source}"\n#pragma clang attribute pop\n'
            target_words = ("-target", f"{processor}-linux-musl", *includes, "-I.")
            zig("cc", *target_words, *COMPILE, *SMALL[processor][1], "-c", "-o", made, "-xc", "-", text=text)
        zig("ld.lld", *LINK, *SMALL[processor][0], "-o", str(target.absolute()), *compiled)
    target.write_bytes(without_sections(target.read_bytes()))
    target.chmod(0o755)


def without_sections(program: bytes) -> bytes:
    """Cut an executable to what the kernel reads: the segments and their table (elf(5)).

    Names and the table of sections are for linkers and debuggers."""
    first, count = struct.unpack_from("<Q", program, 32)[0], struct.unpack_from("<H", program, 56)[0]
    segments = (struct.unpack_from("<8xQ16xQ", program, first + 56 * n) for n in range(count))
    cut = bytearray(program[: max(offset + size for offset, size in segments)])
    struct.pack_into("<Q", cut, 40, 0)  # where the sections' table is
    struct.pack_into("<3H", cut, 58, 0, 0, 0)  # the size of an entry, their number, and which one holds the names
    return bytes(cut)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the helper for x86_64 and aarch64.")
    parser.add_argument("--into", type=Path, default=HERE, help="where the two folders go (default: beside this file)")
    into: Path = parser.parse_args().into
    sums = []
    for processor, name in itertools.product(PROCESSORS, PROGRAMS):
        target = into / processor / name
        compile_for(processor, target)
        sums.append(f"{hashlib.sha256(target.read_bytes()).hexdigest()}  {processor}/{name}\n")
        print(f"{target}: {target.stat().st_size} bytes")
    (into / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()

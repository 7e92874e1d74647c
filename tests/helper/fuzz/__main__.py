"""Fuzzes the helper's programs, built for this machine with sanitizers: `./dev fuzz [--seconds N] [--only NAME]`.

Each program runs as it is, on a kernel whose answers the fuzzer makes (`kernel.c`). What it finds is written into the
directory that is printed, one file for each crash; `--replay FILE` shows it again. The corpus grows there, too."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.users import CHECKOUT

VENDOR = CHECKOUT / "vendor" / "seccomp"
HERE = Path(__file__).resolve().parent
FLAGS = (
    "-std=gnu11",
    "-g",
    "-O1",
    "-fwrapv",
    "-fsanitize=address,undefined",
    "-fno-sanitize=nonnull-attribute",
    "-fno-sanitize-recover=all",
    "-w",
    "-D_GNU_SOURCE",
    "-DAT_RECURSIVE=0x8000",
    "-DSYS_fchmodat2=452",
)
PROGRAMS = {
    "apply-seccomp": "apply-seccomp claim notifications verdicts reports connects sockets unix search landlock guard "
    "modes say",
    "launch": "launch streams say",
    "namespaces": "namespaces",
}
_ASSEMBLY = re.compile(r"^#if defined __x86_64__.*?^#endif", re.DOTALL | re.MULTILINE)


def seeds() -> Iterator[bytes]:
    """Configurations by flags, and a command that has its calls looked at."""
    for flags in (0, 4, 28, 28 | 32 | 2048, 4 | 16 | 1024, 8191 & ~3):
        yield b"\1" + flags.to_bytes(2, "big") + bytes(8) + bytes([4, 2, 4, 5, 6, 64, 32, 96, 200, 12] * 100)
    yield bytes(range(256)) * 4


def build(name: str, into: Path) -> Path:
    """Compile one program with the kernel of the fuzzer. Raises CalledProcessError."""
    into.mkdir(parents=True, exist_ok=True)
    kernel = _ASSEMBLY.sub("", (VENDOR / "kernel.c").read_text())
    kernel = re.sub(r"^void \*memmove.*?^}", "", kernel, flags=re.DOTALL | re.MULTILINE)
    made = into / "kernel-text.c"
    made.write_text(kernel)
    markers = {}
    for place in ("first", "last"):
        markers[place] = into / f"{place}.c"
        markers[place].write_text(f"__attribute__((aligned(64))) char {place}_data[64] = {{1}}, {place}_bss[64];\n")
    objects = []
    sources = [markers["first"], *(VENDOR / f"{one}.c" for one in PROGRAMS[name].split()), made, markers["last"]]
    for source in sources:
        objects.append(into / f"{source.stem}.o")
        plain = source in markers.values()
        words = (
            ["-g"] if plain else [*FLAGS, "-fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table"]
        )
        subprocess.run(["clang-14", *words, f"-I{VENDOR}", "-c", source, "-o", objects[-1]], check=True)
    harness = into / "harness.o"
    subprocess.run(["clang-14", *FLAGS, f'-DPROGRAM="{name}"', "-c", HERE / "kernel.c", "-o", harness], check=True)
    target = into / name
    subprocess.run(["clang-14", *FLAGS, "-fsanitize=fuzzer", *objects, harness, "-o", target], check=True)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="for each program")
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir(), "sandboxd-fuzz"))
    parser.add_argument("--replay", type=Path)
    options = parser.parse_args()
    failed = 0
    for name in options.only or PROGRAMS:
        place = options.into / name
        program = build(name, place)
        if options.replay is not None:
            return subprocess.run([program, options.replay], check=False).returncode
        corpus = place / "corpus"
        corpus.mkdir(exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        words = [
            "-max_len=4096",
            "-len_control=0",
            "-timeout=10",
            f"-max_total_time={options.seconds}",
            "-print_final_stats=1",
        ]
        done = subprocess.run([program, *words, f"-artifact_prefix={place}/", corpus], check=False)
        failed += done.returncode != 0
        print(f"{name}: status {done.returncode}, {place}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

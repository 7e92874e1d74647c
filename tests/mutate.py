"""Break the decision tables row by row, and see that a test notices each time: `./dev mutate [NAME…]`.

Only tables are mutated, because a table is where a wrong word goes unnoticed: the merge table of the settings, the
sources and their precedence, what each tool's rules feed, and the gates of a command decision. Each mutation runs in a
process of its own; a mutation that no test notices is listed, and the exit status is 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "client"), str(ROOT / "tests")]

import pytest  # noqa: E402

from sandboxd.policy.commands import command_decisions  # noqa: E402
from sandboxd.settings import merge  # noqa: E402
from sandboxd.settings.key_table import (  # noqa: E402
    ANY_SOURCE,
    MANAGED_LISTS,
    MANAGED_ONLY,
    TABLE,
    Combine,
    Effect,
    KeyRow,
)
from sandboxd.settings.tools import TOOLS, Feeds, RuleList  # noqa: E402

MERGE = ("tests/settings/test_merge.py",)
RULES = ("tests/settings/test_rules.py", "tests/policy/test_build.py")
GATES = ("tests/policy/commands/test_command_decisions.py", "tests/policy/test_commands_page.py")
# Properties take long to shrink what they find, and the tests beside them say the same of single rows.
WITHOUT_PROPERTIES = "not widens_anything and not order_of_files_does_not"


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    apply: Callable[[], object]
    tests: tuple[str, ...] = MERGE


def mutations() -> Iterator[Mutation]:
    for row in TABLE.values():
        for what, mutant in _rows(row):
            yield Mutation(f"merge {row.key}: {what}", partial(TABLE.__setitem__, row.key, mutant))
    for key in MANAGED_LISTS:
        yield Mutation(f"managed lists: without {key}", partial(MANAGED_LISTS.pop, key))
    for index, (one, two) in enumerate(pairwise(merge.PRECEDENCE[:-1])):
        yield Mutation(f"precedence: {two.value} above {one.value}", partial(_swap, merge, "PRECEDENCE", index))
    for name, tool in TOOLS.items():
        for kind in RuleList:
            for alone in (False, True):
                feeds = tool.feeds(kind, alone=alone)
                for other in {Feeds.NOTHING, _another(feeds)} - {feeds}:
                    changed = {**(tool.alone if alone else tool.content), kind: other}
                    wrong = replace(tool, alone=changed) if alone else replace(tool, content=changed)
                    what = f"rules {name}{' alone' * alone} {kind.value}: feeds {other.value}"
                    yield Mutation(what, partial(TOOLS.__setitem__, name, wrong), RULES)
    for index, (gate, following) in enumerate(pairwise(command_decisions.GATES)):
        yield Mutation(f"gates: without {gate.__name__}", partial(_remove, command_decisions, "GATES", index), GATES)
        if following is not command_decisions.GATES[-1]:
            apply = partial(_swap, command_decisions, "GATES", index)
            yield Mutation(f"gates: {gate.__name__} after {following.__name__}", apply, GATES)


def _rows(row: KeyRow) -> Iterator[tuple[str, KeyRow]]:
    """Everything that could be wrong in one row and would matter."""
    is_list = isinstance(row.default, tuple)
    if not is_list:
        default = not row.default if isinstance(row.default, bool) else "mutated"
        yield f"default {default}", replace(row, default=default)
    if is_list and row.combine is Combine.UNION:
        yield "replace instead of union", replace(row, combine=Combine.REPLACE)
    if row.combine is Combine.STRICTEST:
        yield "replace instead of strictest", replace(row, combine=Combine.REPLACE)
    # Within one source the strictest counts anyway, so that it changes nothing for a key that one source sets.
    if row.combine is Combine.REPLACE and row.effect in (Effect.OPENS, Effect.CLOSES) and row.sources != MANAGED_ONLY:
        yield "strictest instead of replace", replace(row, combine=Combine.STRICTEST)
    if row.effect is Effect.OPENS or row.effect is Effect.CLOSES:
        flipped = Effect.CLOSES if row.effect is Effect.OPENS else Effect.OPENS
        yield f"{flipped.value} instead of {row.effect.value}", replace(row, effect=flipped)
    if row.effect is Effect.BY_ENTRY:
        yield "closes", replace(row, effect=Effect.CLOSES)
        yield "opens", replace(row, effect=Effect.OPENS)
    if row.sources == ANY_SOURCE:
        yield "managed only", replace(row, sources=MANAGED_ONLY)
    else:
        yield "anybody", replace(row, sources=ANY_SOURCE)
    if row.order:
        yield "order reversed", replace(row, order=row.order[::-1])


def _another(feeds: Feeds) -> Feeds:
    everything = list(Feeds)
    return everything[(everything.index(feeds) + 1) % len(everything)]


def _swap(module: Any, name: str, index: int) -> None:
    items = list(getattr(module, name))
    items[index], items[index + 1] = items[index + 1], items[index]
    setattr(module, name, tuple(items))


def _remove(module: Any, name: str, index: int) -> None:
    items = list(getattr(module, name))
    del items[index]
    setattr(module, name, tuple(items))


def noticed(mutation: Mutation) -> bool:
    """Run the tests with the mutation applied, in a child process; True when one of them failed."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        status = 3
        try:
            mutation.apply()
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", WITHOUT_PROPERTIES, *mutation.tests]))
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, 1):
        raise SystemExit(f"mutate: the tests could not be run ({status}) with: {mutation.name}")
    return status == 1


def main(wanted: list[str]) -> int:
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # the same hypothesis examples each time
    unchanged = Mutation("nothing", dict, (*MERGE, *RULES, *GATES))
    if noticed(unchanged):
        print("mutate: the tests fail without any mutation: pytest " + " ".join(unchanged.tests), file=sys.stderr)
        return 2
    chosen = [mutation for mutation in mutations() if not wanted or any(word in mutation.name for word in wanted)]
    survivors = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for mutation, killed in zip(chosen, pool.map(noticed, chosen), strict=True):
            if not killed:
                survivors.append(mutation.name)
                print(f"not noticed: {mutation.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

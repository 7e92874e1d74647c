"""The reference model that also judges real bubblewrap (`support.file_model`) judges profiles: trees with symlinks,
names that do not exist, patterns. Each case is known by its seed."""

from __future__ import annotations

import os

import pytest

from sandboxd.policy.model import FilePolicy, PathRule
from sandboxd.settings.origins import BUILT_IN
from support import file_model
from support.dictionary_host import DIRECTORY
from support.file_model import Case, Model, random_case
from support.seatbelt import Compiled, compiled, place

TOP = "/Users/me/t"
SEEDS = int(os.environ.get("SANDBOXD_MODEL_SEEDS", "240"))
SHARES = 8


def here(path: str) -> str:
    return f"{TOP}/{path}" if path else TOP


def entry(kind: str) -> str:
    if kind == file_model.DIRECTORY:
        return DIRECTORY
    if kind == file_model.FILE:
        return ""
    target = kind.removeprefix(file_model.LINK)
    return "-> " + (here(target.lstrip("/")) if target.startswith("/") else target)


def path_rules(texts: list[str]) -> tuple[PathRule, ...]:
    return tuple(PathRule(here(text.removeprefix("glob:")), BUILT_IN, text.startswith("glob:"), text) for text in texts)


def profile_of(case: Case) -> Compiled:
    files = FilePolicy(
        allow_write=path_rules(case.allow_write),
        deny_write=path_rules(case.deny_write),
        deny_read=path_rules(case.deny_read),
        allow_read=path_rules(case.allow_read),
    )
    host = {TOP: DIRECTORY, **{here(path): entry(kind) for path, kind in case.tree.items()}}
    where = place(cwd=here(case.cwd), project_root=here(case.project))
    return compiled(files, host=host, where=where, only_files=True)


def may_be_stricter(case: Case) -> bool:
    """Patterns of both kinds: where they meet, macOS may refuse what Linux allows (docs/platforms.md)."""
    denies = any(text.startswith("glob:") for text in case.deny_read)
    return denies and any(text.startswith("glob:") for text in (*case.allow_read, *case.allow_write))


def check(case: Case) -> None:
    model = Model(case)
    if model.refused:
        return
    made = profile_of(case)
    for path, kind in case.tree.items():
        if kind.startswith(file_model.LINK):
            continue  # the kernel looks at what it leads to
        found = (made.reads(here(path)), made.writes(here(path)))
        expected = (model.readable(path), model.writable(path))
        if may_be_stricter(case):
            assert not (found[0] > expected[0] or found[1] > expected[1]), (case, path, found, expected)
        else:
            assert found == expected, (case, path, found, expected)
            if model.pinned(path):
                assert not made.moves(here(path)), (case, path)
            elif parent_is_writable(model, path) and model.writable(path) and path not in (model.project, model.cwd):
                opened = model.allow_write | {model.project, model.cwd}
                if not any(file_model.covers(path, root) for root in opened) and not guarded_link(case, model, path):
                    assert made.moves(here(path)), (case, path)
    for path in model.absent_denied():
        assert not made.writes(here(path)) and not made.makes(here(path)), (case, path)


def parent_is_writable(model: Model, path: str) -> bool:
    return model.writable(file_model.parent(path))


def guarded_link(case: Case, model: Model, path: str) -> bool:
    """Whether a symlink lies below: one that a rule goes through may be guarded, and so its directory is."""
    return any(kind.startswith(file_model.LINK) and file_model.covers(path, one) for one, kind in case.tree.items())


@pytest.mark.parametrize("share", range(SHARES))
def test_generated_policies_mean_what_the_model_says(share: int) -> None:
    for seed in range(share, SEEDS, SHARES):
        check(random_case(seed))

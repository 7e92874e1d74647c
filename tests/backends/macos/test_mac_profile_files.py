"""File rules in profiles, case by case. F-numbers are those of the collected cases."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sandboxd.errors import PolicyError
from sandboxd.policy.build import build_policy
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PathRule
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import BUILT_IN, Source
from support.dictionary_host import DIRECTORY, FILE
from support.sbpl import Request, file
from support.seatbelt import (
    AF_UNIX,
    HOME,
    PROJECT,
    SESSION_TMP,
    Compiled,
    compiled,
    place,
    problems,
    rules,
    sockets,
    use_socket,
)

PLAIN = compiled()


# files


def test_a_denied_file_in_a_region_that_was_opened() -> None:
    made = compiled(
        FilePolicy(allow_read=rules(PROJECT, f"{HOME}/.aws"), deny_read=rules(f"{HOME}/.aws/credentials")),
        host={f"{HOME}/.aws/credentials": FILE, f"{HOME}/.aws/config": FILE},
    )
    assert not made.reads(f"{HOME}/.aws/credentials")
    assert made.reads(f"{HOME}/.aws/config")
    assert not made.moves(f"{HOME}/.aws/credentials")


def test_names_in_installed_packages() -> None:
    assert PLAIN.makes(f"{PROJECT}/node_modules/p/.vscode/settings.json")
    assert PLAIN.makes(f"{PROJECT}/sub/node_modules/.mcp.json")
    assert not PLAIN.makes(f"{PROJECT}/.vscode/settings.json")
    assert not PLAIN.makes(f"{PROJECT}/.mcp.json")


def test_a_linked_worktree() -> None:
    """The common directory is writable, its hooks and configuration are not."""
    main = f"{HOME}/main/.git"
    made = compiled(
        host={
            f"{PROJECT}/.git": f"gitdir: {main}/worktrees/w",
            f"{main}/HEAD": FILE, f"{main}/config": FILE, f"{main}/hooks/pre-commit": FILE,
            f"{main}/objects": DIRECTORY, f"{main}/worktrees/w/index": FILE, f"{main}/worktrees/w/commondir": "../..",
        }
    )  # fmt: skip
    for name in ("objects/12/34", "refs/heads/x", "logs/HEAD", "packed-refs.lock", "worktrees/w/index.lock"):
        assert made.writes(f"{main}/{name}") and made.makes(f"{main}/{name}")
    for name in ("config", "hooks/pre-commit", "hooks/new", "config.worktree"):
        assert not made.writes(f"{main}/{name}") and not made.makes(f"{main}/{name}")
    assert not made.writes(f"{HOME}/main/src.c")
    assert not made.writes(f"{PROJECT}/.git")
    assert made.makes(f"{PROJECT}/src.c")


def test_built_in_refusals_can_be_lifted_one_by_one() -> None:
    host = {f"{PROJECT}/.vscode/settings.json": FILE}
    made = compiled(FilePolicy(allow_write=rules(f"{PROJECT}/.vscode")), host=host)
    assert made.writes(f"{PROJECT}/.vscode/settings.json")
    assert not made.writes(f"{PROJECT}/.idea/x")


ODD = (
    'quote"', "paren)", "(allow default)", "back\\slash", "new\nline", "emoji 😀", "x.*", "param", "a'b", "#t",
    "; comment", "$HOME", "%s", "caf\u00e9", "tab\there", "[x]", "a=b", "-D", "^$",
)  # fmt: skip


def shape(made: Compiled) -> set[str]:
    return set(re.sub(r'"[PR][0-9]+"', '"_"', made.source.text).splitlines())


def compiled_in(name: str) -> Compiled:
    project = f"{HOME}/{name}"
    return compiled(
        FilePolicy(allow_write=rules(f"{HOME}/out"), deny_read=(literal(f"{project}/secret"), literal(f"{HOME}/deny"))),
        host={project: DIRECTORY, f"{HOME}/out": DIRECTORY, f"{project}/secret": FILE, f"{HOME}/deny": FILE},
        where=place(cwd=project, project_root=project),
    )


def literal(path: str) -> PathRule:
    return PathRule(path, BUILT_IN)


@pytest.mark.parametrize("name", ODD)
def test_what_a_directory_is_called_does_not_matter(name: str) -> None:
    odd = f"{HOME}/{name}"
    made = compiled_in(name)
    assert shape(made) == shape(compiled_in("plain"))
    assert made.writes(f"{odd}/x") and not made.reads(f"{odd}/secret")
    assert not made.writes(f"{HOME}/other/x") and made.reads(f"{HOME}/other")
    assert not made.makes(f"{odd}/a/.vscode") and made.makes(f"{odd}/a/vscode")
    assert not made.allows(Request("appleevent-send"))
    assert problems(made) == []


@pytest.mark.parametrize("spelling", ["/tmp/ws", "/private/tmp/ws"])
def test_both_spellings_of_linked_directories(spelling: str) -> None:
    made = compiled(
        FilePolicy(deny_read=rules("/etc/secret", "/private/var/db/x", "/tmp/ws/**/*.pem")),
        host={"/private/tmp/ws": DIRECTORY, "/private/etc/secret": FILE, "/private/var/db/x": FILE},
        where=place(cwd=spelling, project_root=spelling),
    )
    for start in ("/tmp", "/private/tmp"):
        assert made.makes(f"{start}/ws/x") and not made.makes(f"{start}/x") and not made.makes(f"{start}/ws/.mcp.json")
        assert not made.reads(f"{start}/ws/a/b.pem")
    for path in ("/etc/secret", "/private/etc/secret", "/var/db/x", "/private/var/db/x"):
        assert not made.reads(path)


def test_both_unicode_forms() -> None:
    files = FilePolicy(deny_read=rules(f"{HOME}/caf\u00e9", f"{HOME}/\u00fc*"))
    made = compiled(files, host={f"{HOME}/caf\u00e9": FILE})
    for path in (f"{HOME}/caf\u00e9", f"{HOME}/cafe\u0301", f"{HOME}/\u00fcx", f"{HOME}/u\u0308x"):
        assert not made.reads(path), path


def test_the_least_settings_that_work() -> None:
    """`allowWrite: ["."]` and nothing else."""
    made = compiled(FilePolicy(allow_write=rules(PROJECT)))
    assert made.makes(f"{PROJECT}/x") and made.makes(f"{SESSION_TMP}/x")
    assert made.allows(file("file-write-data", "/dev/null"))
    assert made.reads("/usr/bin/true") and made.allows(Request("process-exec"))


@pytest.mark.parametrize(
    "path",
    [".claude/settings.local.json", ".claude/hooks/x", ".cursor/rules", ".vscode/tasks.json", ".mcp.json"],
)
def test_settings_of_agents_and_editors(path: str) -> None:
    """`.envrc` and virtual environments stay writable; docs/files.md names them as a remaining risk."""
    assert not PLAIN.makes(f"{PROJECT}/{path}") and not PLAIN.writes(f"{PROJECT}/{path}")
    assert PLAIN.makes(f"{PROJECT}/.envrc") and PLAIN.makes(f"{PROJECT}/.venv/pyvenv.cfg")


def test_reading_can_be_an_allow_list() -> None:
    """The plumbing holds under any policy: a path can be walked, the first shell and the loader can be read."""
    made = compiled(FilePolicy(deny_read=rules("/"), allow_read=rules("/usr", PROJECT)), host={"/usr/bin/true": FILE})
    assert made.reads("/usr/bin/true") and made.reads(f"{PROJECT}/x") and made.makes(f"{PROJECT}/x")
    assert not made.reads(f"{HOME}/x") and not made.reads("/private/etc/hosts")
    assert made.reads("/bin/sh") and made.reads("/usr/lib/dyld")
    assert made.allows(file("file-read-metadata", HOME, "DIRECTORY"))
    assert not made.allows(file("file-read-data", HOME, "DIRECTORY"))
    assert made.allows(file("file-read-metadata", "/tmp", "SYMLINK"))
    assert made.reads(f"{SESSION_TMP}/x") and made.allows(file("file-write-data", "/dev/null"))
    assert problems(made) == []


def test_patterns_in_all_four_lists() -> None:
    made = compiled(
        FilePolicy(
            allow_write=rules(f"{HOME}/.gnupg/*.lock", f"{HOME}/logs/*/out"),
            deny_write=rules(f"{PROJECT}/**/*.lock"),
            deny_read=rules(f"{HOME}/**/id_*", f"{PROJECT}/secrets/*"),
            allow_read=rules(f"{HOME}/keys/id_public*"),
        ),
        host={f"{HOME}/.ssh/id_rsa": FILE, f"{PROJECT}/secrets/a": FILE, f"{HOME}/keys/id_public1": FILE},
    )
    assert made.makes(f"{HOME}/.gnupg/x.lock") and not made.makes(f"{HOME}/.gnupg/x")
    assert made.makes(f"{HOME}/logs/a/out/deep/x") and not made.makes(f"{HOME}/logs/a/other")
    assert not made.writes(f"{PROJECT}/a/b/yarn.lock") and made.writes(f"{PROJECT}/a/b/yarn")
    assert not made.reads(f"{HOME}/.ssh/id_rsa") and not made.reads(f"{HOME}/a/b/id_x/y")
    assert not made.reads(f"{PROJECT}/secrets/a") and not made.writes(f"{PROJECT}/secrets/new")
    assert problems(made) == []


def documented(text: str) -> dict[str, list[str]]:
    """The lists of the settings in docs/macos.md."""
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    sandbox = json.loads(block)["sandbox"]
    lists = {**sandbox["filesystem"], **sandbox["network"]}
    return {name: [path.replace("~", HOME, 1) for path in paths] for name, paths in lists.items()}


def test_gpg_can_sign() -> None:
    """Sockets and locks open, the secret keys closed, and closed last. The settings are those of the page."""
    keys = f"{HOME}/.gnupg/private-keys-v1.d"
    lists = documented((Path(__file__).parents[3] / "docs" / "macos.md").read_text())
    made = compiled(
        FilePolicy(allow_write=rules(*lists["allowWrite"]), deny_read=rules(*lists["denyRead"])),
        NetworkPolicy(allow_unix_sockets=sockets(*lists["allowUnixSockets"])),
        host={f"{keys}/x.key": FILE, f"{HOME}/.gnupg/S.gpg-agent": FILE, f"{HOME}/.gnupg/random_seed": FILE},
    )
    assert made.allows(use_socket(f"{HOME}/.gnupg/S.gpg-agent")) and made.allows(AF_UNIX)
    assert made.makes(f"{HOME}/.gnupg/.#lk0x1.host") and made.writes(f"{HOME}/.gnupg/random_seed")
    assert not made.reads(f"{keys}/x.key") and not made.makes(f"{keys}/y.key")
    assert not made.makes(f"{HOME}/.gnupg/gpg.conf")


def test_patterns_that_cannot_be_enforced_are_errors() -> None:
    with pytest.raises(PolicyError) as caught:
        compiled(FilePolicy(deny_read=rules(f"{HOME}/[!^]x")))
    assert caught.value.slug == "pattern_unsupported"


def test_a_long_policy_is_accepted_and_a_longer_one_refused() -> None:
    """3,000 paths."""
    paths = [f"{HOME}/d/file-{number}" for number in range(3000)]
    made = compiled(FilePolicy(deny_read=rules(*paths)), host=dict.fromkeys(paths, FILE), only_files=True)
    assert not made.reads(paths[-1]) and made.reads(f"{HOME}/d/other")
    longer = [f"{HOME}/{'d' * 200}/{'e' * 200}/file-{number}" for number in range(2400)]
    with pytest.raises(PolicyError) as caught:
        compiled(FilePolicy(deny_read=rules(*longer)), host=dict.fromkeys(longer, FILE), only_files=True)
    assert caught.value.slug == "profile_too_long"


def of_settings(tree: dict[str, object], **host: str) -> Compiled:
    files = build_policy(
        merge([layer_from_values(tree, Source.USER)]), PathScope(HOME, PROJECT, platform="macos")
    ).files
    return compiled(files, host={f"{HOME}/{name}": FILE for name in host.values()}, only_files=True)


def test_permission_rules_close_by_each_tool_and_form() -> None:
    for text in ("LS(.env)", "R*(.env)", 'Read(".env")', "NotebookRead(./.env)"):
        for kind in ("deny", "ask"):
            made = of_settings({"permissions": {kind: [text]}}, a="project/.env", b="project/env")
            assert not made.reads(f"{PROJECT}/.env") and made.reads(f"{PROJECT}/env"), (kind, text)
    for text, notebook in (("Edit", False), ("W*e", False), ("NotebookEdit", True)):
        made = of_settings({"permissions": {"deny": [text]}}, a="project/a", b="project/sub/b.ipynb")
        assert made.writes(f"{PROJECT}/a") is notebook and not made.writes(f"{PROJECT}/sub/b.ipynb"), text
        assert made.reads(f"{PROJECT}/sub/b.ipynb") and made.writes(f"{SESSION_TMP}/x")


def test_reading_is_closed_outside_of_working_directories() -> None:
    permissions = {"blockReadsOutsideWorkingDirectories": True, "additionalDirectories": ["~/added"]}
    made = of_settings({"permissions": permissions}, a="project/a", b="private", c="added/x")
    assert made.reads(f"{PROJECT}/a") and made.writes(f"{PROJECT}/a") and made.reads(f"{HOME}/added/x")
    assert not made.reads(f"{HOME}/private") and made.reads("/private/etc/hosts")


def test_a_denial_without_a_beginning_holds_in_caches() -> None:
    """As an expression: also for what a command makes."""
    sandbox = {"presets": ["caches"], "filesystem": {"denyWrite": ["**/.env"]}}
    made = of_settings({"sandbox": sandbox}, a=".cache/pip/a/plain")
    assert made.writes(f"{HOME}/.cache/pip/a/plain") and not made.writes(f"{HOME}/.cache/pip/a/.env")

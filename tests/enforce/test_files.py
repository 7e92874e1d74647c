"""File rules as people meet them: the field cases about mounts and the families FS and RD of the conformance list, each
blocked case with a twin that is allowed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab import LS, Lab, Rules
from support.users import Identity


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        yield opened


def files_below(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


def test_a_dotfile_that_is_a_link_stays_one(lab: Lab) -> None:
    store = lab.identity.write(lab.identity.base / "store" / "bashrc", "safe\n")
    (lab.home / ".bashrc").symlink_to(store)
    (lab.home / ".profile").symlink_to("nowhere/at/all")
    assert lab.run("true", allow_write=["~"]).ok
    for attempt in (
        "echo evil > ~/.bashrc", "rm ~/.bashrc", "mv ~/.bashrc ~/x", "ln -sf /etc/passwd ~/.bashrc",
        "rm ~/.profile", "echo evil > x && mv x ~/.profile",
    ):  # fmt: skip
        assert not lab.run(attempt, allow_write=["~", f"/{store.parent}"]).ok, attempt
    assert store.read_text() == "safe\n"
    assert os.readlink(lab.home / ".bashrc") == str(store)
    assert lab.run("cat ~/.bashrc; echo x > ~/other", allow_write=["~"]).stdout == "safe\n"


def test_absent_directories_of_an_agent_cannot_be_made(lab: Lab) -> None:
    """The command runs, the names cannot be made, and nothing is left."""
    assert lab.run("true").ok
    assert not lab.run("mkdir -p .claude/commands && echo x > .claude/commands/a.md").ok
    assert not lab.run("mkdir .vscode").ok
    assert lab.run("mkdir -p other/commands && echo x > other/commands/a.md").ok
    assert files_below(lab.workspace) == ["other", "other/commands", "other/commands/a.md"]


def test_a_denied_directory_is_refused_not_emptied(lab: Lab) -> None:
    """Nothing that is written there seems to succeed."""
    lab.identity.write(lab.home / ".ssh" / "id", "key")
    for allow in ([], ["~"]):
        done = lab.run("echo k > ~/.ssh/authorized_keys", deny_read=["~/.ssh"], allow_write=allow)
        assert not done.ok and "Permission denied" in done.stderr
        assert not lab.run("chmod 700 ~/.ssh || ls ~/.ssh", deny_read=["~/.ssh"], allow_write=allow).ok
        assert not lab.run("cat ~/.ssh/id", deny_read=["~/.ssh"], allow_write=allow).stdout
    assert files_below(lab.home) == [".ssh", ".ssh/id"]
    assert lab.run("cat ~/.ssh/id").stdout == "key"


@pytest.mark.parametrize("below_tmp", [True, False])
def test_lists_nest_in_any_depth(lab: Lab, below_tmp: bool) -> None:
    """Below a denied directory a readable one, in it a writable one. Random trees: test_files_model."""
    top = Path(tempfile.mkdtemp()) / "t" if below_tmp else lab.identity.base / "t"
    if below_tmp:
        assert top.parts[1] == "tmp"
        top.parent.chmod(0o755)
    for name in ("other/file", "ws/file", "ws/proj/file"):
        lab.identity.write(top / name, name)
    rules: Rules = {"deny_read": [f"/{top}"], "allow_read": [f"/{top}/ws"], "allow_write": [f"/{top}/ws/proj"]}
    assert lab.run(f"touch {top}/ws/proj/f", **rules).ok
    assert (top / "ws" / "proj" / "f").exists()
    assert lab.run(f"cat {top}/ws/file", **rules).stdout == "ws/file"
    for attempt in ("cat other/file", "touch ws/f", "touch new", "ls .", "rm -r ws/proj"):
        attempt = f"cd {top} && {attempt}"
        assert not lab.run(attempt, **rules).ok, attempt
    assert lab.run(f"cat {top}/other/file", allow_read=[f"/{top}/other"]).stdout == "other/file"
    if below_tmp:
        shutil.rmtree(top.parent)


def test_a_denied_file_in_a_writable_directory(lab: Lab) -> None:
    """The more specific rule counts, and of two for the same path the deny."""
    secret = lab.identity.write(lab.workspace / "secret.txt", "s")
    rules: Rules = {"deny_read": ["./secret.txt"], "allow_read": ["."], "allow_write": ["."]}
    for attempt in ("cat secret.txt", "echo > secret.txt", "rm secret.txt", "mv secret.txt x", "ln secret.txt x"):
        assert not lab.run(attempt, **rules).ok, attempt
    assert secret.read_text() == "s"
    same: Rules = {"deny_read": ["./secret.txt"], "allow_read": ["./secret.txt"], "allow_write": ["./secret.txt"]}
    assert not lab.run("cat secret.txt", **same).ok and not lab.run("echo > secret.txt", **same).ok
    assert lab.run("cat secret.txt").stdout == "s"


def test_a_home_that_is_denied_with_a_writable_child(lab: Lab) -> None:
    """Parents are mounted before children, in whatever lists they stand."""
    child = lab.identity.write(lab.home / "p" / "old", "old").parent
    done = lab.run(f"touch ~/p/f; {LS} ~/p", deny_read=["~"], allow_read=["~/p"], allow_write=["~/p"])
    assert done.stdout.split() == ["f", "old"]
    assert (child / "f").exists()


def test_a_trailing_pattern_means_the_directory(lab: Lab) -> None:
    """And patterns that open nothing are reported."""
    lab.identity.write(lab.identity.base / "d" / "x", "")
    assert lab.run(f"echo x > {lab.identity.base}/d/f", allow_write=[f"/{lab.identity.base}/d/**"]).ok
    assert not lab.run(f"echo x > {lab.identity.base}/d/g").ok
    done = lab.run("true", allow_write=["~/none/**", "~/none*"])
    assert done.ok and [one for one in done.warnings if "nothing was opened" in one] == done.warnings[:2]


def test_patterns_match_files_directories_and_links(lab: Lab) -> None:
    """Each by its kind, links where they lead, and what leads nowhere keeps no command from starting."""
    lab.identity.write(lab.home / ".ssh" / "id_rsa", "key")
    lab.identity.write(lab.home / ".ssh" / "id_dir" / "inner", "key")
    lab.identity.write(lab.home / "elsewhere" / "k", "key")
    (lab.home / ".ssh" / "id_link").symlink_to("../elsewhere")
    (lab.home / ".ssh" / "id_nowhere").symlink_to("gone")
    (lab.home / ".ssh" / "id_round").symlink_to("id_round")
    os.mkfifo(lab.home / ".ssh" / "id_pipe")
    own = f"/tmp/sdt-{secrets.token_hex(8)}"
    done = lab.run(
        f"cd ~/.ssh; cat id_rsa id_dir/inner id_link/k ../elsewhere/k; echo ok > {own}; cat {own}; ls",
        deny_read=["~/.ssh/id_*"],
    )
    assert done.stdout.split() == ["ok", "id_dir", "id_link", "id_nowhere", "id_pipe", "id_round", "id_rsa"]


def test_a_file_reached_through_two_names_is_masked_once(lab: Lab) -> None:
    """Found by a pattern, below a link, below a link to a link, and named."""
    lab.identity.write(lab.workspace / "real" / ".env", "secret")
    (lab.workspace / "link").symlink_to("real")
    (lab.workspace / "second").symlink_to("link")
    (lab.workspace / "real" / "self").symlink_to("../real")
    assert lab.run("true").ok
    done = lab.run("cat real/.env second/self/.env", deny_read=["**/.env", "./second/.env", "./real/.env"])
    assert done.stdout == "" and done.stderr.count("Permission denied") == 2


def test_a_secret_on_a_disk_that_cannot_be_written(lab: Lab) -> None:
    """A file system of its own, mounted read-only by root. As a user can see it: test_hosts_that_resist."""
    if os.geteuid() != 0:
        return
    store = lab.identity.base / "store"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(store)], check=True)
    try:
        for name in (".env.example", "open"):
            (store / name).write_text(name)
        subprocess.run(["mount", "-o", "remount,ro", str(store)], check=True)
        (lab.workspace / "flake").symlink_to(store)
        assert lab.run("true").ok
        for rule in ("./flake/.env*", f"/{store}/.env.example"):
            attempt = "cat flake/open flake/.env.example; touch flake/new"
            done = lab.run(attempt, deny_read=[rule], allow_write=["./flake"])
            assert done.stdout == "open" and "Permission denied" in done.stderr and "Read-only" in done.stderr, done
    finally:
        subprocess.run(["umount", str(store)], check=True)


def test_the_agents_own_directory_as_working_directory(lab: Lab) -> None:
    """It runs, its configuration stays closed, and nothing is left of what kept absent names absent."""
    settings = lab.identity.write(lab.home / ".claude" / "settings.json", "{}")
    lab.identity.write(lab.home / ".claude" / "hooks" / "old", "old")
    cwd = lab.home / ".claude"
    rules: Rules = {"cwd": cwd, "settings_files": [settings, cwd / "settings.local.json"]}
    assert lab.run("true; touch free", **rules).ok
    attempts = ("settings.json", "settings.local.json", "hooks/new", "hooks/old", "commands/x", "agents/x", "skills/x")
    both: list[Rules] = [rules, {"allow_write": ["~/.claude"]}]
    for each in both:
        for name in attempts:
            assert not lab.run(f"cd {cwd}; mkdir -p $(dirname {name}); echo x > {name}", **each).ok, name
    assert not lab.run("mv hooks h", cwd=cwd).ok
    assert files_below(cwd) == ["free", "hooks", "hooks/old", "settings.json"]
    assert lab.run("mkdir other; echo x > other/commands", cwd=cwd).ok


def test_a_working_directory_in_a_protected_place_is_read_only(lab: Lab) -> None:
    """The client that chooses the directory of a command cannot open what programs outside obey."""
    lab.host("git init -q; mkdir -p .vscode .claude/hooks web/.husky web/src node_modules/p/.vscode; touch web/inc")
    lab.host("git config core.hooksPath web/.husky; git config include.path ../web/inc; git init -q --bare bare")
    for name in (".vscode", ".claude/hooks", ".git/hooks", "bare/hooks"):
        done = lab.run("echo x > file", project=lab.workspace / name)
        assert not done.ok and any("work in another directory" in one for one in done.warnings), done
        assert lab.run("echo x > file", project=lab.workspace / name, allow_write=[f"/{lab.workspace / name}"]).ok
    assert not lab.run("echo x > config", project=lab.workspace / ".git").ok
    # a part of a repository, which keeps the hooks of the whole
    for attempt in ("echo x > .husky/pre-commit", "mv .husky h", "echo x > inc"):
        assert not lab.run(attempt, project=lab.workspace / "web").ok, attempt
    assert lab.run("echo x > src/free; echo x > free", project=lab.workspace / "web").ok
    assert lab.run("echo x > free", project=lab.workspace / "node_modules" / "p" / ".vscode").ok


def test_a_repository_in_a_protected_place_is_a_project(lab: Lab) -> None:
    """As editors and agents keep their worktrees."""
    lab.host("git init -q; git commit -q --allow-empty -m i; mkdir -p ~/.cursor/trees")
    lab.host("git worktree add -q ~/.cursor/trees/t")
    tree = lab.home / ".cursor" / "trees" / "t"
    assert lab.run("mkdir src; touch src/a; git add -A; git commit -qm a", project=tree).ok
    assert lab.run("touch b", project=tree / "src").ok
    assert not lab.run("mkdir -p .claude/commands", project=tree).ok
    assert not lab.run("touch a", project=lab.workspace, cwd=tree.parent).ok


def test_everything_denied_but_what_programs_need(lab: Lab) -> None:
    """The files that the sandbox itself needs are there. With a network: test_field_messages."""
    rules: Rules = {"deny_read": ["//"], "allow_read": ["/usr", "/lib", "/lib64", "/bin", "/etc", "."]}
    name = f"sdt-{secrets.token_hex(8)}"
    done = lab.run(
        f"cat /etc/hostname >/dev/null; echo $TMPDIR; echo x > $TMPDIR/{name}; cat /tmp/{name}; {LS}; touch z", **rules
    )
    assert done.ok and done.stdout.split()[1:] == ["x"], done
    for attempt in ("ls /", "ls /var", f"ls {lab.home}", "ls /opt", "touch /new", "mkdir /tmp2"):
        assert not lab.run(attempt, **rules).ok, attempt
    assert lab.run("true", deny_read=["/tmp"]).ok


def test_a_git_link_that_leads_out(lab: Lab) -> None:
    other = lab.home / "r"
    lab.host(f"git init -q {other}; ln -s {other}/.git .git")
    assert lab.run("git status").ok
    assert not lab.run("rm .git").ok
    assert not lab.run(f"touch {other}/.git/x").ok
    assert lab.run(f"touch {other}/.git/x", allow_write=[f"/{other}"]).ok
    assert not lab.run(f"echo > {other}/.git/config", allow_write=[f"/{other}"]).ok


@pytest.mark.parametrize("name", [".vscode/settings.json", ".idea/x", ".mcp.json"])
def test_folders_of_editors_in_packages_are_free(lab: Lab, name: str) -> None:
    """As packages ship them, and not at the top of a workspace."""
    assert lab.run(f"mkdir -p $(dirname node_modules/p/{name}) && touch node_modules/p/{name}").ok
    assert not lab.run(f"mkdir -p $(dirname {name}) && echo > {name}").ok
    assert lab.run(f"touch node_modules/p/{name}").ok


def test_every_session_has_a_temporary_directory_of_its_own(lab: Lab) -> None:
    """Kept between its commands. Two at once: test_field_messages."""
    name = f"sdt-{secrets.token_hex(8)}"
    assert lab.run(f"mkdir /tmp/{name}; echo a > /tmp/{name}/f").ok
    moved = f'cat $TMPDIR/{name}/f; mv $TMPDIR/{name} /tmp/{name}-y; test -d "$TMPDIR/{name}-y"'
    assert lab.run(moved).stdout == "a\n"
    assert not Path(f"/tmp/{name}").exists() and not Path(f"/tmp/{name}-y").exists()


def test_writable_means_readable_too(lab: Lab) -> None:
    """Writable means readable too."""
    lab.identity.write(lab.home / "w" / "target", "t")
    (lab.home / "w" / "link").symlink_to("target")
    done = lab.run("echo a > ~/w/f && cat ~/w/f ~/w/link", deny_read=["~"], allow_write=["~/w"])
    assert done.stdout == "a\nt"


def test_settings_of_an_agent_in_four_disguises(lab: Lab) -> None:
    attempt = "mkdir -p .claude; echo '{}' > .claude/settings.json"
    assert not lab.run(attempt).ok
    (lab.workspace / ".claude").mkdir()
    lab.identity.own(lab.workspace / ".claude")
    assert not lab.run(attempt).ok
    assert not lab.run(f"mv .claude x; {attempt}").ok
    (lab.workspace / ".claude").rmdir()
    (lab.workspace / "other").mkdir()
    lab.identity.own(lab.workspace / "other")
    (lab.workspace / ".claude").symlink_to("other")
    assert not lab.run(attempt).ok
    assert not lab.run(f"rm .claude; {attempt}").ok
    assert lab.run("echo x > other/free").ok
    assert files_below(lab.workspace) == [".claude", "other", "other/free"]


@pytest.mark.parametrize(
    "attempt",
    [
        "cat p",
        "cat hard",
        "cat /proc/self/root/$PWD/secret",
        "cat /proc/self/cwd/secret",
        "cat ./x/../secret",
        "cat //$PWD//secret",
    ],
)
def test_other_names_of_a_denied_file(lab: Lab, attempt: str) -> None:
    """Other names of a denied file."""
    secret = lab.identity.write(lab.workspace / "secret", "s3cret")
    (lab.workspace / "p").symlink_to("secret")
    (lab.workspace / "x").mkdir()
    assert lab.run(attempt.replace("hard", "secret")).stdout == "s3cret"
    if "hard" in attempt:
        os.link(secret, lab.workspace / "hard")
        done = lab.run(attempt, deny_read=["./secret"])
        assert any("hard links" in warning for warning in done.warnings)
    else:
        assert not lab.run(attempt, deny_read=["./secret"]).ok


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        (".claude/settings.local.json", True), (".claude/hooks/x", True), (".cursor/rules", True),
        (".vscode/tasks.json", True), (".mcp.json", True), (".idea/x", True), (".gitmodules", True),
        (".ripgreprc", True), (".envrc", False), (".venv/pyvenv.cfg", False), ("sub/free.json", False),
    ],
)  # fmt: skip
def test_files_that_programs_outside_obey(lab: Lab, name: str, refused: bool) -> None:
    for existing in (False, True):
        if existing:
            lab.identity.write(lab.workspace / name, "old")
        done = lab.run(f"mkdir -p $(dirname {name}); echo new > {name}")
        assert done.ok is not refused, (existing, done)
    assert (lab.workspace / name).read_text() == ("old" if refused else "new\n")


def test_protected_names_deeper_down(lab: Lab) -> None:
    lab.identity.write(lab.workspace / "a/b/c/.vscode/tasks.json", "old")
    lab.identity.write(lab.workspace / "a/b/c/d/.vscode/tasks.json", "old")
    assert not lab.run("echo x > a/b/c/.vscode/tasks.json").ok
    assert not lab.run("mv a/b a/x").ok
    assert lab.run("echo x > a/b/c/d/.vscode/tasks.json").ok
    assert not lab.run("echo x > a/b/c/d/.vscode/tasks.json", depth=4).ok
    # found although it came between two commands, and although an ignore-file names it
    lab.identity.write(lab.workspace / ".gitignore", "*\n")
    lab.identity.write(lab.workspace / "z/.vscode/tasks.json", "old")
    assert not lab.run("echo x > z/.vscode/tasks.json").ok
    lab.host("rm -r z; mkdir -p y/z; mv y/z .; mkdir z/.vscode; echo old > z/.vscode/tasks.json")
    assert not lab.run("echo x > z/.vscode/tasks.json").ok


@pytest.mark.parametrize("name", [".hg/hgrc", ".hg/hgrc-not-shared", ".jj/repo/config.toml"])
def test_configurations_of_other_repositories_stay(lab: Lab, name: str) -> None:
    """Where there is none, Mercurial and Jujutsu make it themselves."""
    for place in (".", "a")[: 3 - name.count("/")]:  # as deep as is searched
        lab.host(f"mkdir -p $(dirname {place}/{name}); echo 1 > {place}/{name}")
        at = f"{place}/{name}"
        done = lab.run(f"echo 2 > {at}; rm -f {at}; mv {at} x; : > $(dirname {at})/store")
        assert done.ok and (lab.workspace / place / name).read_text() == "1\n"
    assert lab.run(f"mkdir -p new/$(dirname {name}); echo 2 > new/{name}").ok


def test_a_directory_that_cannot_be_searched_is_read_only(lab: Lab) -> None:
    hidden = lab.identity.write(lab.workspace / "hidden" / ".vscode" / "tasks.json", "old").parent.parent
    hidden.chmod(0)
    done = lab.run("chmod 700 hidden && echo x > hidden/.vscode/tasks.json")
    hidden.chmod(0o755)
    assert not done.ok
    assert (hidden / ".vscode" / "tasks.json").read_text() == "old"


def test_explicit_rules_of_the_user_lift_a_protection(lab: Lab) -> None:
    """Exactly named, and by a file that no command could have written."""
    lab.host("git init -q; mkdir .vscode; echo old > .vscode/tasks.json")
    assert lab.run("touch .git/hooks/pre-commit", allow_write=["./.git/hooks"]).ok
    assert lab.run("echo x > .vscode/tasks.json", allow_write=["./.vscode/tasks.json"]).ok
    assert not lab.run("echo x > .vscode/other", allow_write=["./.vscode/tasks.json"]).ok
    assert not lab.run("touch .git/hooks/post-commit", allow_write=["."]).ok
    assert not lab.run("touch .git/hooks/post-commit", allow_write=["./.git/*"]).ok
    assert not lab.run("touch .git/hooks/post-commit", allow_write=["./.git/hooks"], source="project").ok


def test_fs27_a_root_that_does_not_exist(lab: Lab) -> None:
    done = lab.run("true", allow_write=["~/no/such/dir"], allow_read=["~/nor/this"], deny_read=["~/nor/that"])
    assert done.ok and sum("does not exist" in warning for warning in done.warnings) == 2
    assert files_below(lab.home) == []
    done = lab.run("mkdir -p build/out && touch build/out/x", allow_write=["./build/out"])
    assert done.ok and done.warnings == []
    done = lab.run("mkdir .vscode .claude/agents", allow_write=["./.vscode", "./.claude/agents"])
    assert (lab.workspace / ".vscode").is_dir() and not (lab.workspace / ".claude" / "agents").exists()
    (warning,) = done.warnings
    assert f"{lab.workspace}/.claude/agents does not exist" in warning


def test_denied_names_that_do_not_exist_cannot_be_made(lab: Lab) -> None:
    both: list[Rules] = [{"deny_write": ["./build/secret"]}, {"deny_read": ["./build/secret"]}]
    for rules in both:
        assert not lab.run("mkdir -p build; echo x > build/secret", **rules).ok
        assert not lab.run("mkdir -p build; mv build x && mkdir -p build/secret", **rules).ok
        assert lab.run("mkdir -p build; echo x > build/other", **rules).ok
    lab.host("rm -r build")
    assert files_below(lab.workspace) == []


@pytest.mark.parametrize(
    ("rule", "slug"),
    [
        ({"deny_read": ["."]}, "cwd_denied"),
        ({"allow_write": ["/dev"]}, "devices_all"),
        ({"deny_read": ["/dev/null"]}, "device_basic"),
    ],
)
def test_what_cannot_be_enforced_is_an_error(lab: Lab, rule: Rules, slug: str) -> None:
    done = lab.run("touch ran", **rule)
    assert done.error == slug and done.hint
    assert files_below(lab.workspace) == []


def test_a_denied_directory_above_leaves_the_project_open(lab: Lab) -> None:
    outside = lab.identity.write(lab.home / "secret", "s")
    inside = lab.identity.write(lab.home / "proj" / "sub" / "file", "f").parent.parent
    assert lab.run("cat sub/file; touch new", project=inside, deny_read=["~"]).stdout == "f"
    assert not lab.run(f"cat {outside}", project=inside, deny_read=["~"]).ok
    # the directory of one command opens nothing: a model may choose it
    assert lab.run("true", project=lab.workspace, cwd=inside, deny_read=["~"]).error == "cwd_denied"
    assert not lab.run("touch x", project=lab.workspace, cwd=inside).ok  # it opens nothing


def test_many_matches(lab: Lab) -> None:
    for number in range(1, 21):
        folder = lab.workspace / "foo" / str(number) / "data" / "cache"
        folder.mkdir(parents=True)
        for name in range(50):
            (folder / str(name)).write_text("secret")
    done = lab.run("cat foo/3/data/cache/7; echo hi", deny_read=["./foo/*/data/cache/**"])
    assert done.stdout == "hi\n" and done.mounts < 150


def test_options_that_are_too_many_for_an_argument_list(lab: Lab) -> None:
    folder = lab.workspace / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    for number in range(400):
        (folder / f"secret-{number}").write_text("secret")
    done = lab.run(f"cat {folder}/secret-399; cat {folder}/secret-0; echo hi", deny_read=[f"/{folder}/secret-*"])
    assert done.stdout == "hi\n" and done.stderr.count("Permission denied") == 2


def test_fs07_and_fs17_the_outside_cannot_be_linked_or_shortened(lab: Lab) -> None:
    outside = lab.identity.write(lab.home / "file", "content")
    (lab.workspace / "late").symlink_to(outside)
    for attempt in (
        f"ln {outside} inside", f"truncate -s 0 {outside}", f"chmod 777 {outside}", f"touch -d 2001-01-01 {outside}",
        "echo > late", f"mv {outside} .",
        f"python3 -c \"import os; os.ftruncate(os.open('{outside}', os.O_RDONLY), 0)\"",
        f"fallocate -p -l 3 {outside}", f"cp /etc/hostname {outside}", "mknod disk b 8 0",
    ):  # fmt: skip
        assert not lab.run(attempt).ok, attempt
    assert outside.read_text() == "content"
    assert lab.run("mkfifo pipe").ok


def test_fs13_a_denied_file_cannot_be_made_again(lab: Lab) -> None:
    lab.identity.write(lab.workspace / "d" / "f", "old")
    for attempt in ("rm d/f; echo new > d/f", "mv d e; mkdir d; echo new > d/f", "rm -r d", "echo x > n; mv n d/f"):
        assert not lab.run(attempt, deny_write=["./d/f"]).ok, attempt
    assert (lab.workspace / "d" / "f").read_text() == "old"
    assert lab.run("rm d/f; echo new > d/f").ok


@pytest.mark.parametrize(
    "name",
    ["a b", "percent%41", "new\nline", "return\r", "tab\t", "ü", "u\u0308", "quote'\"", "[x]", "*"],
)
def test_fs22_odd_names(lab: Lab, name: str) -> None:
    lab.identity.write(lab.workspace / name / "f", "s")
    quoted = "".join(f"[{c}]" if c in "*[" else c for c in name)
    done = lab.run('cat "$P/f"', deny_read=[f"./{quoted}/*"], env={"P": name})
    assert not done.ok and "Permission denied" in done.stderr


def test_fs29_links_of_a_merged_usr_work_and_stay_safe(lab: Lab) -> None:
    assert not lab.run("cat /bin/cat", deny_read=["/bin/cat"]).ok
    assert not lab.run("/usr/bin/cat /usr/bin/cat", deny_read=["/bin/cat"]).ok
    assert lab.run("head -c 4 /bin/cat").ok


def test_fs34_the_working_directory_has_to_exist(lab: Lab) -> None:
    assert lab.run("true", cwd=lab.workspace / "gone", project=lab.workspace).error == "cwd_missing"
    lab.identity.write(lab.workspace / "file", "")
    assert lab.run("true", cwd=lab.workspace / "file", project=lab.workspace).error == "cwd_missing"
    assert lab.run("mkdir x; cd x; rmdir ../x; pwd -P >/dev/null 2>&1; echo ok").stdout == "ok\n"


def test_fs42_and_fs43_devices_and_shared_memory_are_private(lab: Lab) -> None:
    done = lab.run("ls /dev; touch /dev/shm/x; ls /dev/shm")
    assert set(done.stdout.split()) <= {
        "console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "x", "zero",
    }  # fmt: skip
    assert not Path("/dev/shm/x").exists()


def test_a_listed_device_can_be_used(lab: Lab) -> None:
    """A node of its own where one can be made, else one that every Linux has and the sandbox's /dev has not."""
    if os.geteuid() == 0:
        node = Path(f"/dev/sandboxd-test-{os.getpid()}")
        os.mknod(node, 0o20666, os.makedev(1, 3))
        node.chmod(0o666)
    else:
        node = next(path for path in map(Path, ("/dev/net/tun", "/dev/fuse", "/dev/kmsg")) if path.exists())
    try:
        assert lab.run(f"test -c {node}", allow_write=[str(node)]).ok
        assert lab.run(f"test ! -e {node}").ok
        if os.geteuid() == 0:
            assert lab.run(f"echo x > {node}", allow_write=[str(node)]).ok
    finally:
        if os.geteuid() == 0:
            node.unlink()


def test_the_daemons_own_files_are_out_of_reach(lab: Lab) -> None:
    own = lab.identity.write(lab.workspace / "venv" / "lib.py", "ours").parent
    assert not lab.run("echo x > venv/lib.py", daemon_paths=[own]).ok
    assert not lab.run("mv venv x", daemon_paths=[own]).ok
    private = lab.identity.base / "lab" / "private"
    for attempt in (f"ls {private}", f"ls {private}/run", f"cat {private}/mask", f"touch {private}/run/x"):
        assert not lab.run(attempt, allow_write=[f"/{lab.identity.base}"]).ok, attempt
    assert lab.run(f"touch {private}/tmp/mine; ls /tmp/mine").ok


def test_all_writable_still_protects(lab: Lab) -> None:
    lab.identity.write(lab.home / ".bashrc", "safe")
    attempt = "echo x > ~/.bashrc; echo x > ~/.local/bin/git; echo y > ~/.local/free; echo y > ~/free; cat ~/free"
    assert lab.run(attempt, allow_write=["~"]).stdout == "y\n"
    assert files_below(lab.home) == [".bashrc", ".local", ".local/free", "free"]


@pytest.mark.parametrize("mode", ["theirs", "read-only"])
def test_a_writable_directory_in_which_nobody_can_make_anything(lab: Lab, mode: str) -> None:
    """What cannot be made outside cannot be made inside, so no protected name stands in the way of the command."""
    directory = lab.identity.base / "locked"
    lab.identity.write(directory / "file", "f")
    lab.identity.write(directory / "inner" / "file", "f")
    if mode == "read-only" or lab.identity.uid == 0:
        directory.chmod(0o555)
    elif lab.identity.is_me:
        return  # no other user here could own it
    else:
        os.chown(directory, 0, 0)
        directory.chmod(0o755)
    rules: Rules = {"allow_write": [f"/{directory}"], "deny_write": [f"/{directory}/absent"]}
    attempts = "mkdir absent .vscode; chmod 755 . && touch .mcp.json; cat file"
    done = lab.run(f"cd {directory}; {attempts}", **rules)
    assert done.stdout == "f", done
    directory.chmod(0o755)
    assert sorted(one.name for one in directory.iterdir()) == ["file", "inner"]
    if mode == "theirs" and lab.identity.uid:
        assert lab.run(f"touch {directory}/inner/new", **rules).ok

"""Every symptom has its hint, and a hint is a command line that can be typed."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.explain.hint_table import HINTS, Symptom
from sandboxd.policy.explain.hints import ONE_OFF, ONLY_CONTENT, hint_for
from sandboxd.policy.violation import ViolationKind
from sandboxd.settings.origins import Origin, Source

HOME = "/home/me"
READ, WRITE, SOCKET = ViolationKind.READ, ViolationKind.WRITE, ViolationKind.UNIX_SOCKET
NETWORK, CONNECT, SERVICE = ViolationKind.NETWORK, ViolationKind.CONNECT, ViolationKind.SERVICE


def because(reason: Reason, rule: str | None = None, hint: str = "") -> Decision:
    origin = Origin(Source.USER, "sandbox.filesystem.denyWrite", "/s.json", 3) if rule else None
    return Decision(Behavior.DENY, reason, "", rule, origin, hint)


NOT_WRITABLE = because(Reason.PATH_NOT_WRITABLE)
CASES = [
    # (kind, operation, target, decision, words)
    (WRITE, "openat", "/home/me/.npm/_cacache/x", NOT_WRITABLE, "mkdir -p ~/.npm/_cacache && sandboxd allow path"),
    (WRITE, "openat", "/home/me/.cache/pip/a/b", NOT_WRITABLE, "path ~/.cache/pip, or those of all: sandboxd"),
    (WRITE, "mkdir", "/home/me/.cache", NOT_WRITABLE, "to open those alone: sandboxd allow preset caches"),
    (WRITE, "openat", "/home/me/.ccache/tmp/x", NOT_WRITABLE, "sandboxd allow path ~/.ccache, or"),
    (WRITE, "openat", "/home/me/.cargo/registry/x", NOT_WRITABLE, "allow path ~/.cargo/registry"),
    (WRITE, "mkdir", "/home/me/.cargo", NOT_WRITABLE, "to open those alone: sandboxd allow preset caches"),
    (WRITE, "openat", "/home/me/.npm/x", because(Reason.PATH_DENIED, "~/.npm"), "remove the rule ~/.npm"),
    (WRITE, "openat", "/home/me/.m2/repository/x", NOT_WRITABLE, "allow path ~/.m2/repository"),
    (WRITE, "mkdir", "/home/me/.gradle", NOT_WRITABLE, "to open those alone: sandboxd allow preset caches"),
    (WRITE, "mkdir", "/home/me/.config", NOT_WRITABLE, "no rule is proposed for all of it"),
    (WRITE, "mkdir", "/home/me/.config/go", NOT_WRITABLE, "path ~/.config/go; or to keep changes for the"),
    (WRITE, "mkdir", "/home/me/.config/fish", because(Reason.PATH_PROTECTED), "sandbox; or to keep changes for the"),
    (WRITE, "mkdir", "/home/me/new", NOT_WRITABLE, "mkdir -p ~/new && sandboxd allow path ~/new"),
    (WRITE, "chmod", "/home/me/old", NOT_WRITABLE, "sandbox: sandboxd allow path ~/old"),
    (WRITE, "unlink", "/home/me/old", NOT_WRITABLE, ONLY_CONTENT),
    (WRITE, "set-user-id", "/home/me/w/su", None, "without the set-user-ID bit"),
    (WRITE, "foreign-owner", "/home/me/w/one", None, "sandbox.filesystem.owners refuse"),
    (WRITE, "openat", "/_tmp_17_1a2b", NOT_WRITABLE, ONE_OFF),
    (WRITE, "openat", "/home/me/x/tmp/y", NOT_WRITABLE, ONE_OFF),
    (WRITE, "openat", "/home/me/.local/share/direnv/allow/0a", because(Reason.PATH_PROTECTED), "change it outside"),
    (WRITE, "openat", "/home/me/.local/share/uv/x", NOT_WRITABLE, "export UV_TOOL_DIR=$TMPDIR/tools"),
    (WRITE, "openat", "/home/me/.cache/uv/archive-v0/x", because(Reason.PATH_PROTECTED), "UV_CACHE_DIR=$TMPDIR/uv"),
    (WRITE, "openat", "/home/me/.cache/pre-commit/x", NOT_WRITABLE, "PRE_COMMIT_HOME=$TMPDIR/pre-commit"),
    (WRITE, "mkdir", "/home/me/.npm/_npx/x", NOT_WRITABLE, "npm_config_cache=$TMPDIR/npm"),
    (WRITE, "openat", "/home/me/go/pkg/mod/x", NOT_WRITABLE, "export GOMODCACHE=$TMPDIR/go "),
    (WRITE, "mkdir", "/home/me/.local/share/pipx/x", NOT_WRITABLE, "PIPX_HOME=$TMPDIR/pipx"),
    (WRITE, "mkdir", "/home/me/.local/share/pnpm/x", NOT_WRITABLE, "npm_config_store_dir=$TMPDIR/pnpm"),
    (WRITE, "mkdir", "/home/me/.bun/install/cache/x", NOT_WRITABLE, "BUN_INSTALL_CACHE_DIR=$TMPDIR/bun"),
    (WRITE, "mkdir", "/home/me/.cache/pypoetry/virtualenvs/x", NOT_WRITABLE, "POETRY_VIRTUALENVS_IN_PROJECT=true"),
    (WRITE, "mkdir", "/home/me/.cache/node/corepack/x", NOT_WRITABLE, "COREPACK_HOME=$TMPDIR/corepack"),
    (WRITE, "mkdir", "/home/me/.cache/ms-playwright/x", NOT_WRITABLE, "PLAYWRIGHT_BROWSERS_PATH=$TMPDIR/browsers"),
    (WRITE, "mkdir", "/home/me/.gradle/wrapper/dists", NOT_WRITABLE, "GRADLE_USER_HOME=$TMPDIR/gradle"),
    (WRITE, "mkdir", "/home/me/.gem/ruby", NOT_WRITABLE, "GEM_HOME=$TMPDIR/gems"),
    (WRITE, "mkdir", "/home/me/.pyenv/versions/3", NOT_WRITABLE, "PYENV_ROOT=$TMPDIR/pyenv"),
    (WRITE, "mkdir", "/home/me/go", NOT_WRITABLE, "GOCACHE=$TMPDIR/go-build"),
    (WRITE, "openat", "/home/me/.cache/other/x", NOT_WRITABLE, "none: mkdir -p ~/.cache/other && sandboxd allow"),
    (WRITE, "file-write-create", "/home/me/Library/Caches/x", NOT_WRITABLE, "allow path ~/Library/Caches"),
    (WRITE, "file-write-create", "/home/me/Library/Caches/pip/x", NOT_WRITABLE, "mkdir -p ~/Library/Caches/pip &&"),
    (WRITE, "openat", "/home/me/notes.txt", NOT_WRITABLE, "read-only in the sandbox: touch ~/notes.txt && s"),
    (WRITE, "openat", "/var/tmp/x y", NOT_WRITABLE, "$TMPDIR, which is writable; for this one: touch"),
    (WRITE, "openat", "/usr/lib/x", NOT_WRITABLE, "belongs to the system"),
    (WRITE, "openat", "/srv/x", NOT_WRITABLE, "sandboxd allow path /srv/x"),
    (WRITE, "openat", "/home/me/.ssh/known_hosts", NOT_WRITABLE, "keys or passwords"),
    (WRITE, "openat", "/p/.git/config", because(Reason.PATH_PROTECTED), "outside the sandbox, with git config"),
    (WRITE, "rename", "/p/.git/modules/a/b/config.lock", because(Reason.PATH_PROTECTED), "with git config"),
    (WRITE, "openat", "/p/.git/hooks/pre-commit", because(Reason.PATH_PROTECTED), "install hooks there"),
    (WRITE, "unlinkat", "/p/sub/.git/config", because(Reason.PATH_PROTECTED), "repositories into $TMPDIR"),
    (WRITE, "openat", "/p/.vscode/tasks.json", because(Reason.PATH_PROTECTED), "change it outside"),
    (WRITE, "openat", "/s/.jj/repo/x", NOT_WRITABLE, "the pointer file .jj/repo"),
    (WRITE, "openat", "/home/me/s/.jj/repo/a/x", NOT_WRITABLE, "sandboxd allow path ~/s/.jj/repo"),
    (WRITE, "openat", "/s/.hg/store/lock", NOT_WRITABLE, ".hg/sharedpath"),
    (WRITE, "openat", "/home/me/.bashrc", NOT_WRITABLE, "because a program outside the sandbox obeys it"),
    (WRITE, "openat", "/p/x", because(Reason.PATH_DENIED, "./x"), "remove the rule ./x in /s.json:3"),
    (WRITE, "openat", "/run/x", because(Reason.PATH_DENIED), "no setting opens"),
    (READ, "openat", "/home/me/.ssh/id_rsa", because(Reason.PATH_DENIED, "~/.ssh"), "is closed on purpose"),
    (READ, "openat", "/p/s", because(Reason.PATH_DENIED, "./s"), "remove the rule ./s in "),
    (READ, "openat", "/p/s/x", because(Reason.PATH_DENIED, "./s"), "sandboxd allow path --read /p/s/x"),
    (READ, "openat", "/p/s", None, "sandboxd allow path --read /p/s"),
    (SOCKET, "connect", "/run/docker.sock", because(Reason.SOCKET_NOT_LISTED), "control of this host"),
    (SOCKET, "connect", "/run/user/1/podman/podman.sock", because(Reason.SOCKET_NOT_LISTED), "containers"),
    (SOCKET, "connect", "/var/tmp/ssh-Xy/agent.7", because(Reason.SOCKET_NOT_LISTED), "signs with your keys"),
    (SOCKET, "connect", "/home/me/.gnupg/S.gpg-agent", because(Reason.SOCKET_NOT_LISTED), "socket ~/.gnupg/S."),
    (SOCKET, "connect", "/run/user/1/bus", because(Reason.SOCKET_NOT_LISTED), "DBUS_SESSION_BUS_ADDRESS"),
    (SOCKET, "connect", "/run/WSL/1_interop", because(Reason.SOCKET_CONTROL), "starts Windows programs"),
    (SOCKET, "connect", "/tmp/.X11-unix/X0", because(Reason.SOCKET_CONTROL), "every window"),
    (SOCKET, "connect", "/run/sandboxd/x.sock", because(Reason.SOCKET_OWN), "no setting opens"),
    (SOCKET, "connect", "/p/x.sock", because(Reason.SOCKET_REDIRECTED), "list /p/x.sock"),
    (WRITE, "openat", "/p/x", because(Reason.PLAN_MODE), "use $TMPDIR"),
    (SOCKET, "connect", "/p/x.sock", because(Reason.SOCKET_BROUGHT), "start its server before the command"),
    (SOCKET, "connect", "/p/x.sock", because(Reason.SOCKET_NOT_LISTED), "sandboxd allow socket /p/x.sock"),
    (SOCKET, "connect", "@x", because(Reason.SOCKET_NOT_LISTED), "listen at a path"),
    (NETWORK, "DNS A", "x.test", because(Reason.HOST_NOT_LISTED), "not looked up, since its host may not be reached"),
    (NETWORK, "CONNECT", "x.test:443", because(Reason.HOST_NOT_LISTED, hint="add it"), "add it"),
    # macOS
    (READ, "file-read-data", "/x", None, "sandboxd allow path --read /x"),
    (WRITE, "file-write-data", "/dev/ttys003", None, "allowPty"),
    (SOCKET, "network-outbound", "/x/s.sock", None, "allowUnixSockets"),
    (CONNECT, "network-outbound", "remote:*:443", None, "HTTP_PROXY"),
    (CONNECT, "network-outbound", "127.0.0.1:5432", None, "sandboxd allow domain localhost:5432"),
    (CONNECT, "network-bind", "local:*:3000", None, "allowLocalBinding"),
    (SERVICE, "mach-lookup", "com.apple.trustd.agent", None, "enableWeakerNetworkIsolation"),
    (SERVICE, "mach-lookup", "com.apple.coreservices.appleevents", None, "allowAppleEvents"),
    (SERVICE, "mach-lookup", "com.example.x", None, "allowMachLookup"),
    (SERVICE, "mach-register", "org.chromium.x", None, "allowMachRegister"),
    (SERVICE, "appleevent-send", "com.apple.finder", None, "allowAppleEvents"),
    (SERVICE, "forbidden-sandbox-reinit", "", None, "--no-sandbox"),
    (SERVICE, "forbidden-sandbox-reinit", "", None, "swift build --disable-sandbox"),
    (SERVICE, "forbidden-exec-sugid", "", None, "setuid"),
    (SERVICE, "forbidden-exec-sugid", "/bin/ps", None, "jobs -l"),
    (SERVICE, "mach-lookup", "com.apple.SecurityServer", None, "preset credentials"),
    (SERVICE, "user-preference-read", "com.example.x", None, "preferences of the system"),
    (SERVICE, "ipc-posix-shm-read-data", "/x", None, "$TMPDIR"),
    (SERVICE, "pseudo-tty", "", None, "allowPty"),
    (SERVICE, "system-socket", "", None, "allowUnixSockets"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operation", "target", "decision", "words"), CASES)
def test_symptoms(kind: ViolationKind, operation: str, target: str, decision: Decision | None, words: str) -> None:
    assert words in hint_for(Symptom(kind, operation, target, HOME, decision))


def test_every_row_is_the_first_for_something() -> None:
    used = set()
    for kind, operation, target, decision, _ in CASES:
        symptom = Symptom(kind, operation, target, HOME, decision)
        used.add(next((row for row in HINTS if row.match(symptom)), None))
    assert [row for row in HINTS if row not in used] == []


def test_a_neutralised_name_is_no_word_of_a_command_line() -> None:
    hint = hint_for(Symptom(WRITE, "openat", "/srv/a\\x1b[2J", HOME, NOT_WRITABLE))
    assert hint == "touch PATH && sandboxd allow path PATH"
    assert hint_for(Symptom(ViolationKind.SERVICE, "iokit-open", "X")) == ""


@given(st.text(alphabet="ab .'\"$`;&|*~é", min_size=1))
def test_a_path_stays_one_word(name: str) -> None:
    for target in (f"/srv/{name}", f"{HOME}/{name}"):
        words = shlex.split(hint_for(Symptom(WRITE, "openat", target, HOME, NOT_WRITABLE)))
        path = words[words.index("path") + 1]
        assert path.replace("~", HOME, 1).rstrip("/") == target.rstrip("/") or path == target


def test_no_hint_proposes_rules_that_only_managed_settings_set() -> None:
    for kind, operation, target, reason in (
        (READ, "openat", "/home/me/.ssh/id", Reason.PATH_DENIED),
        (NETWORK, "dns-a", "x.test", Reason.HOST_NOT_LISTED),
        (CONNECT, "CONNECT", "x.test:443", Reason.HOST_NOT_LISTED),
    ):
        locked = hint_for(Symptom(kind, operation, target, HOME, because(reason, "~/.ssh", ONLY_MANAGED)))
        assert locked == ONLY_MANAGED and "sandboxd allow" not in locked
        free = hint_for(Symptom(kind, operation, target, HOME, because(reason, "~/.ssh", "sandboxd allow …")))
        assert free != ONLY_MANAGED

"""Table of hints on violations, from a symptom to a command line. Pure data.

The first row that fits gives the hint. It names the power that the change gives where that is more than one path, and
never suggests opening secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sandboxd.policy.decision import Decision, Reason
from sandboxd.policy.violation import ViolationKind
from sandboxd.settings.presets import PRESETS
from sandboxd_client.records import dataclass

_READ, _WRITE = (ViolationKind.READ,), (ViolationKind.WRITE,)
_FILES = (ViolationKind.READ, ViolationKind.WRITE)
_SOCKET = (ViolationKind.UNIX_SOCKET,)
_NETWORK = (ViolationKind.NETWORK, ViolationKind.CONNECT)
_SERVICE = (ViolationKind.SERVICE,)
_ANY = ".*"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A blocked access; without `decision` only the system knows the reason."""

    kind: ViolationKind
    operation: str
    target: str
    home: str = ""
    decision: Decision | None = None
    exists: bool = True
    """False where nothing is known to have this name."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One row of the table.

    `operation` and `target` are expressions for the whole of each; `~` in `target` is the home directory. Its
    group `path` is the part to open instead of the target. `reasons` limits the row to these. In `text`, `{allow}` is
    the command line that opens it."""

    kinds: Sequence[ViolationKind]
    target: str
    text: str
    operation: str = _ANY
    reasons: Sequence[Reason] = ()
    built_in: bool = False
    """The row is for decisions without a rule."""

    def match(self, symptom: Symptom) -> re.Match[str] | None:
        """Return the match of the target where the row fits."""
        if symptom.kind not in self.kinds:
            return None
        if self.reasons and (symptom.decision is None or symptom.decision.reason not in self.reasons):
            return None
        if self.built_in and (symptom.decision is None or symptom.decision.rule is not None):
            return None
        if self.operation != _ANY and not _expression(self.operation).fullmatch(symptom.operation):
            return None
        if "~" in self.target and symptom.home in ("", "/"):
            return None
        return _expression(self.target.replace("~", re.escape(symptom.home))).fullmatch(symptom.target)


_SECRET = (
    r"~/\.(ssh|aws|azure|gnupg|kube|docker|netrc|pgpass|git-credentials|npmrc|pypirc|vault-token|password-store|mozilla|"
    r"cargo/credentials(\.toml)?|config/(gcloud|gh|glab-cli|hub|op|git/credentials|google-chrome|chromium)|"
    r"local/share/keyrings|[a-z_]+_history)(/.*)?"
)
_PRESET = "sandboxd allow preset caches"
_HOME_TEXT = "to keep changes for the session alone: sandboxd settings set sandbox.filesystem.home overlay"
_CACHE_TEXT = f"a cache of a package manager: {{allow}}, or those of all: {_PRESET}"
_ABOVE_CACHES_TEXT = f"package managers keep caches in it; to open those alone: {_PRESET}; or {_HOME_TEXT}"
_CACHE_DIRECTORIES = tuple(path[2:-1] for path in PRESETS["caches"].allow_write if path.endswith("/"))
_CACHE = "|".join(map(re.escape, _CACHE_DIRECTORIES))
_ABOVE_CACHES = "|".join(
    sorted({re.escape(path[: slash.start()]) for path in _CACHE_DIRECTORIES for slash in re.finditer("/", path)})
)
_MANY_PROGRAMS = r"~(/\.(config|local(/share|/state)?)|/Library(/Application Support)?|/\.var)?"
_OF_A_PROGRAM = r"~/\.(config|cache|local)/.+"
_SHARED_STORES = (
    (r"\.jj/repo", "the pointer file .jj/repo"),
    (r"\.hg", "the pointer file .hg/sharedpath"),
)
"""Stores of Mercurial and Jujutsu that workspaces share; worktrees of git are followed."""
_PROGRAM_CACHES = (
    (r"\.cache/uv", "UV_CACHE_DIR=$TMPDIR/uv"),
    (r"\.local/share/uv", "UV_TOOL_DIR=$TMPDIR/tools UV_PYTHON_INSTALL_DIR=$TMPDIR/python"),
    (r"\.local/(share/)?pipx", "PIPX_HOME=$TMPDIR/pipx PIPX_BIN_DIR=$TMPDIR/bin"),
    (r"\.local/share/pnpm", "npm_config_store_dir=$TMPDIR/pnpm"),
    (r"\.bun/install", "BUN_INSTALL_CACHE_DIR=$TMPDIR/bun"),
    (r"\.npm/_npx", "npm_config_cache=$TMPDIR/npm"),
    (r"\.cache/(pre-commit|prek)", "PRE_COMMIT_HOME=$TMPDIR/pre-commit PREK_HOME=$TMPDIR/prek"),
    (r"(\.cache|Library/Caches)/pypoetry/virtualenvs", "POETRY_VIRTUALENVS_IN_PROJECT=true"),
    (r"\.cache/node", "COREPACK_HOME=$TMPDIR/corepack"),
    (r"(\.cache|Library/Caches)/ms-playwright", "PLAYWRIGHT_BROWSERS_PATH=$TMPDIR/browsers"),
    (r"\.gradle/wrapper", "GRADLE_USER_HOME=$TMPDIR/gradle"),
    (r"(go(/pkg)?|(\.cache|Library/Caches)/go-build)", "GOMODCACHE=$TMPDIR/go GOCACHE=$TMPDIR/go-build"),
    (r"\.gem|\.local/share/gem", "GEM_HOME=$TMPDIR/gems"),
    (r"\.pyenv", "PYENV_ROOT=$TMPDIR/pyenv"),
)
_PROGRAM_TEXT = "programs that lie there are run outside the sandbox; put those of this command elsewhere: export "
_AGENT_TEXT = "an agent signs with your keys for each client; if that is meant: sandboxd allow socket {path}"
_SCREEN_TEXT = "it types into and reads every window of your desktop; if that is meant: sandboxd allow socket {path}"
_PTY = "to allow new pseudo-terminals: sandboxd settings set sandbox.allowPty true"
_APPLE_EVENTS = (
    "to let it control other programs, which run outside the sandbox: "
    "sandboxd settings set sandbox.allowAppleEvents true"
)

HINTS: tuple[Hint, ...] = (
    # opened by no setting
    Hint(_SOCKET, _ANY, "no setting opens it, since it belongs to sandboxd", reasons=(Reason.SOCKET_OWN,)),
    Hint(
        _SOCKET, _ANY, "the listed path leads here by a symbolic link that the command itself can change; list {path}",
        reasons=(Reason.SOCKET_REDIRECTED,),
    ),
    Hint(
        _SOCKET, _ANY,
        "start its server before the command, or let it listen in a directory that commands cannot write",
        reasons=(Reason.SOCKET_BROUGHT,),
    ),
    Hint(
        _FILES, _ANY, "no setting opens it, since it belongs to sandboxd", reasons=(Reason.PATH_DENIED,),
        built_in=True,
    ),
    Hint(
        _FILES, _ANY, "the permission mode plan writes temporary files only, whatever the settings say: use $TMPDIR",
        reasons=(Reason.PLAN_MODE,),
    ),
    # sockets
    Hint(
        _SOCKET, r".*/(docker|podman|containerd|buildkitd|crio)[^/]*\.sock",
        "its clients start containers, which gives control of this host: run the command outside the sandbox; "
        "only if that control is meant: sandboxd allow socket {path}",
    ),
    Hint(
        _SOCKET,
        r".*/(ssh-[^/]*/agent\.[^/]*|ssh-agent[^/]*|openssh_agent|agent\.sock|keyring/[^/]+|S\.gpg-agent[^/]*)",
        _AGENT_TEXT,
    ),
    Hint(
        _SOCKET, r"(/var)?/run/WSL/.*",
        "it starts Windows programs, which run outside the sandbox; if that is meant: sandboxd allow socket {path}",
    ),
    Hint(
        _SOCKET, r"(/var)?/run/(user/[0-9]+/(bus|systemd/.*)|systemd/.*|dbus/.*)",
        "it starts services outside the sandbox; most programs do without it "
        "(DBUS_SESSION_BUS_ADDRESS=disabled:); if that is meant: sandboxd allow socket {path}",
    ),
    Hint(_SOCKET, r"/tmp/\.X11-unix/.*|(/var)?/run/user/[0-9]+/wayland-.*", _SCREEN_TEXT),
    Hint(
        (*_SOCKET, *_NETWORK), r"/.*",
        "sandboxd allow socket {path} (sandbox.network.allowUnixSockets takes its directory as well)",
    ),
    Hint(
        _SOCKET, r"[^/].*",
        "a socket without a path cannot be listed, and nothing outside is behind it: have its server listen at a path",
    ),
    # secrets
    Hint(
        _READ, _SECRET,
        "it holds secrets and is closed on purpose: pass what the command needs in a variable",
    ),
    Hint(
        _WRITE, _ANY,
        "the mode was set without the set-user-ID bit, which would give your rights to other users; "
        "set it outside the sandbox",
        operation="set-user-id",
    ),
    Hint(
        _WRITE, _ANY,
        "chown to a user that does not exist in the sandbox succeeded without effect; if it is to fail: "
        "sandboxd settings set sandbox.filesystem.owners refuse",
        operation="foreign-owner",
    ),
    Hint(_WRITE, _SECRET, "it holds keys or passwords: change it outside the sandbox"),
    # files of git, before the row for every protected path
    Hint(
        _WRITE, r".*/(\.git|\.git/modules/.*|[^/]+\.git)/(config(\.worktree)?|hooks(/.*)?)",
        "remove it outside the sandbox, since git obeys it; clone temporary repositories into $TMPDIR",
        operation="unlink(at)?|rmdir|file-write-unlink", reasons=(Reason.PATH_PROTECTED,),
    ),
    Hint(
        _WRITE, r".*/(\.git|\.git/modules/.*|[^/]+\.git)/config(\.worktree|\.lock)?",
        "git runs commands that it names: change it outside the sandbox, with git config",
    ),
    Hint(
        _WRITE, r".*/(\.git|\.git/modules/.*|[^/]+\.git)/hooks(/.*)?",
        "git runs the programs in it outside the sandbox: install hooks there",
    ),
    # programs among caches, protected or in no preset
    *(Hint(_WRITE, rf"~/({pattern})(/.*)?", _PROGRAM_TEXT + instead) for pattern, instead in _PROGRAM_CACHES),
    *(
        Hint(
            _WRITE, target,
            f"it is protected, because a program outside the sandbox obeys it: change it outside the sandbox{more}",
            reasons=(Reason.PATH_PROTECTED,),
        )
        for target, more in ((_OF_A_PROGRAM, f"; or {_HOME_TEXT}"), (_ANY, ""))
    ),
    # rules
    Hint(
        _WRITE, _ANY,
        "remove the rule {rule}: denyWrite beats every allowWrite, and denyRead each allowWrite that is not more "
        "specific",
        reasons=(Reason.PATH_DENIED,),
    ),
    # caches
    Hint(_WRITE, rf"(?P<path>~/({_CACHE}))(/.*)?", _CACHE_TEXT),
    Hint(_WRITE, rf"~/({_ABOVE_CACHES})|~/Library/Caches", _ABOVE_CACHES_TEXT),
    Hint(
        _WRITE, _MANY_PROGRAMS,
        "it holds files of many programs, so no rule is proposed for all of it: make the directory of the program "
        f"outside the sandbox, or {_HOME_TEXT}",
    ),
    Hint(
        _WRITE, r"(?P<path>~/(\.cache|Library/Caches)/[^/]+)(/.*)?",
        f"a cache that may hold programs which run outside the sandbox; if it holds none: {{allow}}; or {_HOME_TEXT}",
    ),
    Hint(_READ, _ANY, "if it may be read: sandboxd allow path --read {path}", reasons=(Reason.PATH_DENIED,)),
    # stores that a pointer file of another directory leads to
    *(
        Hint(
            _WRITE, rf"(?P<path>.*/{store})(/.*)?",
            f"it is a store that {pointer} of another directory leads to, which is not followed, since a command could "
            "have written it; if commands may write the store: {allow}",
        )
        for store, pointer in _SHARED_STORES
    ),
    # places
    *(
        Hint(_WRITE, target, f"the home directory is read-only in the sandbox: {{allow}}{more}")
        for target, more in ((_OF_A_PROGRAM, f"; or {_HOME_TEXT}"), (r"~/.*", ""))
    ),
    Hint(
        _WRITE, r"/(var/)?tmp(/.*)?",
        "temporary files belong in $TMPDIR, which is writable; for this one: {allow}",
    ),
    Hint(
        _WRITE, r"/(usr|etc|opt|bin|sbin|lib[^/]*|boot)(/.*)?",
        "it belongs to the system: install into the project or its environment instead",
    ),
    # names and hosts
    Hint(
        _NETWORK, _ANY, "the name is not looked up, since its host may not be reached: sandboxd allow domain {host}",
        operation="(?i:dns.*)", reasons=(Reason.HOST_NOT_LISTED,),
    ),
    # macOS
    Hint(
        _SERVICE, r"com\.apple\.trustd\.agent",
        "programs that check certificates with the system need it (Go among them); "
        "sandbox.enableWeakerNetworkIsolation allows it, and opens a way out past the proxies",
        operation="mach-lookup",
    ),
    Hint(
        _SERVICE, _ANY,
        "the program starts a sandbox inside this one, which macOS refuses; start it without (browsers: --no-sandbox; "
        "swift build --disable-sandbox, for macros -Xswiftc -disable-sandbox; xcodebuild "
        "-IDEPackageSupportDisableManifestSandbox=YES; nix --option sandbox false)",
        operation="forbidden-sandbox-reinit",
    ),
    Hint(
        _SERVICE, r".*/(ps|top)",
        "macOS starts no setuid programs inside, and outside they show the environment of every program; a shell lists "
        "its own jobs: jobs -l",
        operation="forbidden-exec-sugid",
    ),
    Hint(
        _SERVICE, _ANY, "run it outside the sandbox: macOS starts no setuid programs inside",
        operation="forbidden-exec-sugid"
    ),
    Hint(
        _SERVICE, r"com\.apple\.(SecurityServer|securityd\.xpc)",
        "the preset credentials closes the keychain; if commands may ask it for keys, name the service in "
        "sandbox.network.allowMachLookup",
        operation="mach-lookup",
    ),
    Hint(
        _SERVICE, _ANY, "only preferences of the system are readable; pass the value in a variable",
        operation="user-preference-read",
    ),
    Hint(
        _SERVICE, _ANY, "only shared memory of known libraries is open; use a file in $TMPDIR",
        operation="ipc-posix-shm.*",
    ),
    Hint(
        _SERVICE,
        r"com\.apple\.(coreservices\.(appleevents|quarantine-resolver)|CoreServices\.coreservicesd)",
        _APPLE_EVENTS,
        operation="mach-lookup",
    ),
    Hint(_SERVICE, _ANY, _APPLE_EVENTS, operation="appleevent-send|lsopen"),
    Hint(
        _SERVICE, _ANY, "name the service in sandbox.network.allowMachLookup", operation="mach-lookup"
    ),
    Hint(
        _SERVICE, _ANY, "name the service in sandbox.network.allowMachRegister", operation="mach-register"
    ),
    Hint(_SERVICE, _ANY, _PTY, operation="pseudo-tty"),
    Hint(_FILES, r"/dev/(ptmx|ttys[0-9]+)", _PTY),
    Hint(
        _NETWORK, _ANY,
        "to allow listening on local ports: sandboxd settings set sandbox.network.allowLocalBinding true",
        operation="network-(bind|inbound)",
    ),
    Hint(
        _NETWORK, r".*(?:localhost|127\.0\.0\.1|::1)\]?:(?P<port>[0-9]+)",
        "if this machine is meant: sandboxd allow domain localhost:{port}",
        operation="network-outbound",
    ),
    Hint(
        _NETWORK, _ANY,
        "the program does not use the proxy in HTTP_PROXY; set it there, and allow the host in allowedDomains",
        operation="network-outbound",
    ),
    Hint(
        (*_SERVICE, *_NETWORK), _ANY, "name the Unix socket in sandbox.network.allowUnixSockets",
        operation="system-socket",
    ),
    # anything else
    Hint(_WRITE, _ANY, "{allow}"),
    Hint(_READ, _ANY, "sandboxd allow path --read {path}"),
)  # fmt: skip


@lru_cache(maxsize=256)
def _expression(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)

"""Protected names: programs outside obey them, so writing one runs code there.

Where a row applies:

- `HOME`: home directories, because shells and desktops read these files only there;
- `RUNTIME`: the runtime directory of a login, `/run/user/UID`;
- `WORKSPACE`: the top of each writable directory that can be a project, and, where the name already
  exists, every directory below it that the scan reaches (never inside `node_modules`: packages ship such folders);
  also where the writable directory itself has such a name or part of one, as when a command is started in `~/.claude`;
- `GIT_DIR`: every git directory (of a repository, a submodule, a linked worktree or a bare repository).

A name that does not exist is refused as well, as `absent` says. User-scope rules can lift a row by naming its path
exactly (`plan.filesystem.protected_paths`); project files never can."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from fnmatch import fnmatchcase

from sandboxd.policy.model import PathRule
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass


class ProtectedIn(StrEnum):
    HOME = "home"
    RUNTIME = "runtime"
    WORKSPACE = "workspace"
    GIT_DIR = "git-dir"


class Absent(StrEnum):
    """Treatment of a name that does not exist."""

    REFUSE = "refuse"
    """The name cannot be created; directories above it can."""
    REFUSE_TOP = "refuse-top"
    """The first missing directory on the way to it cannot be created either."""
    REFUSE_UNSEEN = "refuse-unseen"
    """The name cannot be created where that takes no placeholder, which would make the directory above it."""
    LEAVE = "leave"
    """It may be created, because git itself creates it; the reason stands in the row."""


@dataclass(frozen=True, slots=True)
class ProtectedName:
    """One protected name: a path below the place, whose last part may hold `*`."""

    name: str
    where: ProtectedIn
    why: str
    absent: Absent = Absent.REFUSE
    git_config: bool = False
    """Lifted by `filesystem.allowGitConfig`."""
    file: bool = False
    """An empty file instead of a directory keeps the name absent, for programs that complain at a directory. Never in a
    working tree, where git would list it.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.name.split("/"))


def _rows(
    where: ProtectedIn, why: str, *names: str, absent: Absent = Absent.REFUSE, file: bool = False
) -> tuple[ProtectedName, ...]:
    return tuple(ProtectedName(name, where, why, absent, file=file) for name in names)


_TOP = Absent.REFUSE_TOP

PROTECTED: tuple[ProtectedName, ...] = (
    *_rows(
        ProtectedIn.HOME,
        "a shell runs it at its next start",
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".bash_aliases",
        ".profile",
        ".zshrc",
        ".zshenv",
        ".zprofile",
        ".zlogin",
        ".zlogout",
        ".kshrc",
        ".mkshrc",
        ".cshrc",
        ".tcshrc",
        ".login",
        ".logout",
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "a shell runs it at its next start",
        *""".config/fish .config/nushell .config/elvish .config/xonsh .config/powershell .config/zsh .elvish .bashrc.d
        .oh-my-zsh .oh-my-bash .zsh .zfunc .zinit .local/share/zinit .zplug .zprezto .antigen .bash_completion.d
        .local/share/bash-completion .local/share/fish/vendor_conf.d .local/share/fish/vendor_functions.d
        .local/share/fish/vendor_completions.d .config/sheldon .config/atuin""".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "start-up files of shells run it, or it names programs for a key or a prompt",
        *""".bash_completion .xonshrc .inputrc .p10k.zsh .fzf.bash .fzf.zsh .zcompdump .cargo/env .nvm/nvm.sh
        .config/starship.toml .selected_editor .config/user-dirs.dirs""".split(),
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "the next login or desktop session runs or obeys it",
        *""".pam_environment .xprofile .xinitrc .xserverrc .xsession .xsessionrc .Xresources .Xdefaults .xbindkeysrc
        .asoundrc .config/mimeapps.list""".split(),
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "the next login or desktop session runs or obeys it",
        *""".config/autostart .config/environment.d .config/systemd/user .local/share/systemd/user .local/share/dbus-1
        .local/share/applications .config/plasma-workspace .config/i3 .i3 .config/sway .config/hypr .config/awesome
        .config/openbox .config/qtile .config/bspwm .config/sxhkd .config/waybar .config/rofi .xmonad .config/xmonad
        .config/pipewire .local/share/gnome-shell/extensions .local/share/plasma .local/share/nautilus/scripts
        .local/share/flatpak Library/LaunchAgents Library/Services .hammerspoon .config/karabiner""".split(),
    ),
    *_rows(ProtectedIn.HOME, "programs in it shadow those of the system", ".local/bin", "bin", ".cargo/bin", "go/bin"),
    *_rows(
        ProtectedIn.HOME,
        "it records what the user trusts, so a command could trust its own files",
        *""".local/share/direnv .local/state/mise/trusted-configs .local/share/nvim .config/JetBrains
        .local/share/JetBrains""".split(),
        "Library/Application Support/JetBrains",
    ),
    *_rows(
        ProtectedIn.HOME,
        "it records what the user trusts, so a command could trust its own files",
        ".local/state/nvim/trust",
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "programs in it are run outside the sandbox",
        *""".local/share/uv/tools .local/share/uv/python .local/share/pipx .local/pipx .local/share/pnpm
        .local/share/mise .pyenv .rbenv .asdf .volta .rustup/toolchains .bun/bin .deno/bin .npm/_npx .gradle/wrapper
        .cache/pre-commit .cache/prek .cache/pypoetry/virtualenvs .cache/node .cache/ms-playwright
        .nvm/versions .fnm .local/share/fnm .nodenv .npm-global .yarn/bin .config/yarn/global .sdkman .jenv .goenv .rvm
        .juliaup .ghcup .cabal/bin .local/state/cabal .opam .nimble/bin .dotnet/tools .pub-cache/bin .krew .pixi
        .local/share/mamba miniconda3 anaconda3 miniforge3 .virtualenvs .local/share/virtualenvs .rye .proto
        .config/composer/vendor .luarocks .mix .m2/wrapper .gradle/jdks .sbt/boot .cache/bazelisk
        .local/share/aquaproj-aqua
        .azure/cliextensions .local/share/gh/extensions .terraform.d .pulumi/plugins .vscode-server .cursor-server
        .local/share/code-server""".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "every interpreter of the user imports what lies in it",
        *""".local/lib .local/lib64 .local/local .node_modules .node_libraries .gem .local/share/gem
        Library/Python""".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "Python in the directory bin beside it takes its library from where it says",  # also where it is an empty file
        "pyvenv.cfg",
        ".local/pyvenv.cfg",
    ),
    *_rows(ProtectedIn.HOME, "its files are hard links of installed programs", ".cache/uv", ".bun/install/cache"),
    *_rows(
        ProtectedIn.HOME,
        "an editor, a terminal, a pager or a debugger runs commands that it names",
        *""".vimrc .gvimrc .exrc .emacs .tmux.conf .screenrc .wezterm.lua .lesskey .lessfilter .gdbinit .gdbearlyinit
        .lldbinit .pdbrc .nanorc .tigrc .mailrc .muttrc .neomuttrc .lftprc""".split(),
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "an editor, a terminal, a pager or a debugger runs commands that it names",
        *""".tmux .config/sublime-text .config/micro .config/kak .config/zellij .config/ranger .config/lf .config/nnn
        .config/yazi .config/mc .config/lazygit .config/tig .config/mpv .mutt .config/mutt .config/neomutt .config/lftp
        .vim .config/vim .config/nvim .emacs.d .config/emacs .config/helix .config/zed .config/Code/User
        .config/Cursor/User .config/VSCodium/User .config/tmux .config/kitty .config/alacritty .config/wezterm
        .config/ghostty .config/gdb""".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "an interpreter runs it at its next start",
        *""".pythonrc .pythonrc.py .irbrc .pryrc .Rprofile .Renviron .ghci .psqlrc .sqliterc .my.cnf .mongoshrc.js
        .iex.exs .erlang .ocamlinit .octaverc .sbclrc .gnuplot .perldb .julia/config/startup.jl
        .ipython/profile_default/ipython_config.py .rspec .pylintrc""".split(),
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "an interpreter runs it at its next start",
        *".ipython/profile_default/startup .jupyter .config/jupyter .local/share/jupyter/kernels .R .lein".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "a tool runs programs that it names",
        *""".npmrc .yarnrc .yarnrc.yml .cargo/config .cargo/config.toml .gradle/init.gradle .mavenrc .docker/config.json
        .aws/config .kube/config .gnupg/gpg.conf .gnupg/gpg-agent.conf .gnupg/scdaemon.conf .gnupg/dirmngr.conf .hgrc
        .config/gh/config.yml .direnvrc .wgetrc .curlrc .rpmmacros .mailcap .forward .procmailrc
        .claude.json .m2/settings.xml .m2/extensions.xml .m2/toolchains.xml .gradle/gradle.properties .sbt/repositories
        .sbtconfig .antrc .bunfig.toml .config/.bunfig.toml .pydistutils.cfg .gemrc .bundle/config
        .aws/credentials .aws/cli/alias .terraformrc .tofurc .netrc .fetchmailrc .msmtprc .taskrc
        .asdfrc .aider.conf.yml""".split(),
        file=True,
    ),
    *_rows(
        ProtectedIn.HOME,
        "a tool runs programs that it names",
        *""".docker/cli-plugins .gradle/init.d .config/direnv .config/hg .config/jj .subversion .config/pip .pip
        .config/uv .config/mise .config/npm .config/pnpm .sbt/plugins .sbt/1.0 .ant .config/containers .config/helm
        .local/share/helm/plugins .nuget/NuGet .nuget/plugins .stack .config/glab-cli .config/breezy""".split(),
    ),
    *_rows(
        ProtectedIn.HOME,
        "agents obey the rules in it, or start the servers that it names",
        *""".copilot .config/opencode .config/goose .config/amp .config/crush .claude/plugins .continue .qwen .roo .kiro
        .factory .junie .augment .aws/amazonq""".split(),
    ),
    *_rows(ProtectedIn.HOME, "it decides who may log in and which commands ssh runs", ".ssh"),
    *_rows(ProtectedIn.HOME, "it decides who may log in", ".rhosts", ".shosts", ".k5login", file=True),
    *_rows(ProtectedIn.HOME, "git runs commands that it names", ".gitconfig", file=True),
    *_rows(ProtectedIn.HOME, "git runs commands that it names", ".config/git"),
    *_rows(ProtectedIn.RUNTIME, "the service manager or bus of the login starts what it names", "systemd", "dbus-1"),
    *_rows(ProtectedIn.RUNTIME, "programs of the login trust what answers there", "bus", file=True),
    *_rows(ProtectedIn.WORKSPACE, "git runs commands that an included configuration names", ".gitconfig"),
    *_rows(ProtectedIn.WORKSPACE, "git fetches from the places it names", ".gitmodules"),
    *_rows(ProtectedIn.WORKSPACE, "ripgrep runs the preprocessor it names", ".ripgreprc"),
    *_rows(ProtectedIn.WORKSPACE, "agents start the servers it names", ".mcp.json"),
    *_rows(
        ProtectedIn.WORKSPACE,
        "opencode starts the servers and plug-ins in it",
        *".opencode opencode.json opencode.jsonc".split(),
    ),
    *_rows(ProtectedIn.WORKSPACE, "editors run tasks and settings found in it", *".vscode .idea .cursor .zed".split()),
    *_rows(ProtectedIn.WORKSPACE, "agents start the servers that it names", *".codex .gemini .windsurf".split()),
    *_rows(ProtectedIn.WORKSPACE, "agents obey the skills in it", ".agents"),
    *_rows(
        ProtectedIn.WORKSPACE,
        "agents start the servers, run the hooks or take the permissions in it",
        *""".qwen .factory .amp .roo .junie .continue .augment .amazonq .kilocode""".split(),
    ),
    *_rows(
        ProtectedIn.WORKSPACE,
        "agents run the hooks or take the permissions in it",
        ".github/hooks",
        ".github/copilot",
        absent=Absent.REFUSE_UNSEEN,
    ),
    *_rows(
        ProtectedIn.WORKSPACE,
        "agents start the servers, run the hooks or take the permissions in it",
        *".kiro/settings .kiro/hooks .kiro/agents .clinerules/hooks".split(),
        absent=_TOP,
    ),
    *_rows(
        ProtectedIn.WORKSPACE,
        "agents run the commands in it",
        *".crushrc crushrc .crush.json crush.json .aider.conf.yml".split(),
    ),
    *_rows(
        ProtectedIn.WORKSPACE,
        "agents obey the rules, hooks and commands in it",
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".claude/commands",
        ".claude/agents",
        ".claude/hooks",
        ".claude/skills",
        absent=_TOP,
    ),
    *_rows(ProtectedIn.WORKSPACE, "agents obey it", ".claude/settings*.json", absent=Absent.LEAVE),
    *_rows(
        ProtectedIn.WORKSPACE,
        "Mercurial and Jujutsu run commands that it names",
        ".hg/hgrc",
        ".hg/hgrc-not-shared",
        ".jj/repo/config.toml",
        absent=Absent.LEAVE,  # they make it themselves, in a new repository
    ),
    *_rows(ProtectedIn.GIT_DIR, "git runs the programs in it", "hooks"),
    ProtectedName("config", ProtectedIn.GIT_DIR, "git runs commands that it names", git_config=True),
    ProtectedName(
        "config.worktree", ProtectedIn.GIT_DIR, "git runs commands that it names", git_config=True, file=True
    ),
    ProtectedName(
        "commondir",
        ProtectedIn.GIT_DIR,
        "it moves the configuration that git reads",
        # a directory of that name makes every git command fail, so the name is watched instead of taken
        Absent.LEAVE,
    ),
)

SETTINGS_FILE = ProtectedName("", ProtectedIn.WORKSPACE, "it is a settings file of sandboxd", Absent.REFUSE_TOP)
"""The row of every settings file that is read, wherever it is."""

SKIPPED_DIRECTORIES = frozenset({"node_modules"})


def rows(where: ProtectedIn, *, allow_git_config: bool = False) -> tuple[ProtectedName, ...]:
    """Return the rows of one place that are in force."""
    return tuple(row for row in PROTECTED if row.where is where and not (row.git_config and allow_git_config))


def login_directory(uid: int) -> str:
    """Return the runtime directory of a login (pam_systemd(8))."""
    return f"/run/user/{uid}"


def begun_names() -> tuple[str, ...]:
    """Return the ends of names of several parts: `commands` of `.claude/commands`."""
    literal = (row.parts for row in rows(ProtectedIn.WORKSPACE) if "*" not in row.name)
    return tuple("/".join(parts[at:]) for parts in literal for at in range(1, len(parts)))


def names_begun_by(directory: str) -> Iterator[tuple[str, ProtectedName]]:
    """Yield rows whose beginning ends a path, with the rest of the name."""
    parts = _outside_packages(directory)
    for row in rows(ProtectedIn.WORKSPACE):
        for at in range(1, len(row.parts)):
            if "*" not in row.name and tuple(parts[-at:]) == row.parts[:at]:
                yield "/".join(row.parts[at:]), row


def names_around(directory: str) -> Iterator[tuple[str, ProtectedName]]:
    """Yield rows whose names are in a path, with the path up to there."""
    parts = _outside_packages(directory)
    for row in rows(ProtectedIn.WORKSPACE):
        for end in range(len(row.parts), len(parts) + 1):
            if "*" not in row.name and tuple(parts[end - len(row.parts) : end]) == row.parts:
                yield "/" + "/".join(parts[:end]), row


def _outside_packages(directory: str) -> list[str]:
    parts = [part for part in directory.split("/") if part]
    return [] if SKIPPED_DIRECTORIES.intersection(parts) else parts


def may_lift(rule: PathRule) -> bool:
    """Return whether a rule may lift the protection of the exact path it names.

    Patterns cannot, nor project files, which an agent can write, nor additional directories."""
    named = not rule.glob and rule.origin.key != "permissions.additionalDirectories"
    return named and rule.origin.source is not Source.PROJECT


def is_protected_name(path: str, home: str) -> bool:
    """Return whether a path has a protected name: a test for suggestions only."""
    parts = [part for part in path.split("/") if part]
    at_home = [part for part in home.split("/") if part]
    below_home = parts[len(at_home) :] if parts[: len(at_home)] == at_home else []
    for row in PROTECTED:
        if row.where is ProtectedIn.HOME and _begins(below_home, row.parts):
            return True
        if row.where is ProtectedIn.RUNTIME and parts[:2] == ["run", "user"] and _begins(parts[3:], row.parts):
            return True
        if row.where is ProtectedIn.WORKSPACE and any(_begins(parts[at:], row.parts) for at in range(len(parts))):
            return True
        if row.where is ProtectedIn.GIT_DIR and any(
            part.endswith(".git") and row.name in parts[at + 1 :] for at, part in enumerate(parts)
        ):
            return True
    return False


def _begins(parts: list[str], name: tuple[str, ...]) -> bool:
    pairs = zip(parts, name, strict=False)
    return len(parts) >= len(name) and all(fnmatchcase(part, expected) for part, expected in pairs)

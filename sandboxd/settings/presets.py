"""Named sets of rules, so that common wishes need one word. `docs/settings.md` prints this table.

A preset either opens or closes, never both: a project file may name the closing ones only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    opens: bool
    why: str
    allow_write: tuple[str, ...] = ()
    """Those that end in a slash are directories that a command may make: who has never used a program has no cache of
    it yet. The others are opened where they exist."""
    deny_read: tuple[str, ...] = ()


PRESETS: dict[str, Preset] = {
    "caches": Preset(
        opens=True,
        why="package managers keep downloads in the home directory; these paths hold no configuration and no tokens",
        allow_write=(
            "~/.cache/",
            "~/.npm/_cacache/",
            "~/.npm/_logs/",
            "~/.npm/_npx/",
            "~/.yarn/berry/cache/",
            "~/.local/share/pnpm/store/",
            "~/.bun/install/cache/",
            "~/.cargo/registry/",
            "~/.cargo/git/",
            "~/.cargo/.package-cache",
            "~/.cargo/.package-cache-mutate",
            "~/.cargo/.global-cache",
            "~/go/pkg/",
            "~/.gradle/caches/",
            "~/.gradle/wrapper/",
            "~/.m2/repository/",
            "~/.ivy2/cache/",
            "~/.nuget/packages/",
            "~/.gem/ruby/",
            "~/.local/share/gem/ruby/",
            "~/.local/share/uv/",
            "~/Library/Caches",
        ),
    ),
    "credentials": Preset(
        opens=False,
        why="well-known places of keys, tokens and passwords; reading is open by default",
        deny_read=(
            "~/.ssh/id_*",
            "~/.ssh/*.pem",
            "~/.ssh/*_key",
            "~/.aws/credentials",
            "~/.aws/sso/cache",
            "~/.aws/cli/cache",
            "~/.azure",
            "~/.config/gcloud",
            "~/.config/gh/hosts.yml",
            "~/.config/glab-cli/config.yml",
            "~/.config/hub",
            "~/.docker/config.json",
            "~/.gnupg/private-keys-v1.d",
            "~/.kube/config",
            "~/.netrc",
            "~/.git-credentials",
            "~/.config/git/credentials",
            "~/.npmrc",
            "~/.yarnrc.yml",
            "~/.pypirc",
            "~/.cargo/credentials",
            "~/.cargo/credentials.toml",
            "~/.gem/credentials",
            "~/.m2/settings.xml",
            "~/.gradle/gradle.properties",
            "~/.terraform.d/credentials.tfrc.json",
            "~/.vault-token",
            "~/.password-store",
            "~/.local/share/keyrings",
            "~/.config/op",
            "~/.config/google-chrome",
            "~/.config/chromium",
            "~/.mozilla",
            "~/Library/Keychains",
            "~/Library/Application Support/Google/Chrome",
            "~/.bash_history",
            "~/.zsh_history",
            "~/.python_history",
            "~/.psql_history",
            "~/.mysql_history",
        ),
    ),
}

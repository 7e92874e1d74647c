"""Named sets of rules for common needs. `docs/settings.md` prints this table.

A preset either opens or closes, never both. A project file may name only those that close."""

from __future__ import annotations

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    opens: bool
    why: str
    allow_write: tuple[str, ...] = ()
    """A path that ends in a slash is a directory that a command may make. The others are opened where they exist."""
    deny_read: tuple[str, ...] = ()


PRIVATE_NETWORKS = "private-networks"

PRESETS: dict[str, Preset] = {
    "caches": Preset(
        opens=True,
        why="package managers keep downloads in the home directory; these paths hold no configuration, no tokens and "
        "no programs. Excluded, because users and hooks run the files there, are tools, interpreters and "
        "environments (uv, pipx, pre-commit, poetry, corepack, playwright, npx, gem, the wrapper of gradle, go with "
        "its toolchains and compiled packages), and the stores of uv, pnpm and bun, whose files are hard links of "
        "installed programs",
        allow_write=(
            "~/.cache/pip/",
            "~/.cache/pypoetry/cache/",
            "~/.cache/pypoetry/artifacts/",
            "~/.cache/yarn/",
            "~/.cache/composer/",
            "~/.cache/coursier/",
            "~/.ccache/",
            "~/.cache/ccache/",
            "~/.cache/sccache/",
            "~/.cache/node-gyp/",
            "~/.cache/huggingface/",
            "~/.cache/fontconfig/",
            "~/.cache/matplotlib/",
            "~/.npm/_cacache/",
            "~/.npm/_logs/",
            "~/.yarn/berry/cache/",
            "~/.cargo/registry/",
            "~/.cargo/git/",
            "~/.cargo/.package-cache",
            "~/.cargo/.package-cache-mutate",
            "~/.cargo/.global-cache",
            "~/.gradle/caches/",
            "~/.m2/repository/",
            "~/.ivy2/cache/",
            "~/.nuget/packages/",
            "~/.bundle/cache/",
            "~/Library/Caches/pip",
            "~/Library/Caches/pypoetry/cache",
            "~/Library/Caches/pypoetry/artifacts",
            "~/Library/Caches/Yarn",
            "~/Library/Caches/composer",
            "~/Library/Caches/CocoaPods",
            "~/Library/Caches/node-gyp",
        ),
    ),
    PRIVATE_NETWORKS: Preset(
        opens=True,
        why="`*` in `allowedDomains` means the Internet, so it covers no router, printer or server of a company or a "
        "home (10/8, 172.16/12, 192.168/16, fc00::/7), also not by a name that leads there; rules that name a host or "
        "domain do. With this preset `*` covers them too",
    ),
    "credentials": Preset(
        opens=False,
        why="well-known places of keys, tokens and passwords, and on macOS the keychain; all is open by default",
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

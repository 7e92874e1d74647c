"""Places of secrets: no suggestion ever opens them.

The preset `credentials` names files that programs need nothing from; this is wider, since a suggestion that is not made
costs little: whole directories of keys, and names that hold secrets wherever they are."""

from __future__ import annotations

from fnmatch import fnmatchcase

from sandboxd.settings.presets import PRESETS

_DIRECTORIES = (
    "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.config/gcloud", "~/.config/gh",
    "~/.password-store", "~/.local/share/keyrings", "~/.pki", "~/.config/sops", "~/.config/rclone", "~/.thunderbird",
    "~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/Signal", "~/.bitcoin", "~/.electrum",
)  # fmt: skip
_FILES = (
    "~/.pgpass", "~/.my.cnf", "~/.s3cfg", "~/.boto", "~/.netrc", "~/.fish_history", "~/.node_repl_history",
    "~/.config/fish/fish_history", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh",
    "/etc/ssl/private", "/root",
)  # fmt: skip
_NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa*", "id_ed25519*",
    "id_ecdsa*", "id_dsa*", ".htpasswd", "credentials", "credentials.json", "secrets.*", "*_history", ".netrc",
    ".pgpass", ".npmrc", ".pypirc", ".git-credentials", ".vault-token",
)  # fmt: skip


def named_secrets() -> tuple[str, ...]:
    """Return the places, partly patterns, with `~` for the home directory."""
    return (*PRESETS["credentials"].deny_read, *_DIRECTORIES, *_FILES)


class SecretPlaces:
    """The places of secrets of one home directory."""

    def __init__(self, home: str) -> None:
        written = (home + text[1:] if text.startswith("~") else text for text in named_secrets())
        self._patterns = [_parts(text) for text in written if text != home]

    def holds(self, path: str) -> bool:
        """Return whether a path is a place of secrets, or lies below one."""
        parts = _parts(path)
        if any(fnmatchcase(part, name) for part in parts for name in _NAMES):
            return True
        return any(len(parts) >= len(pattern) and _fits(parts, pattern) for pattern in self._patterns)

    def below(self, directory: str) -> bool:
        """Return whether a place of secrets may lie below a directory."""
        parts = _parts(directory)
        return any(len(parts) < len(pattern) and _fits(parts, pattern) for pattern in self._patterns)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _fits(parts: list[str], pattern: list[str]) -> bool:
    """Compare the components that both have."""
    return all(fnmatchcase(part, expected) for part, expected in zip(parts, pattern, strict=False))

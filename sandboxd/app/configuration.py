"""Configuration from the command line, the environment and the service manager."""

from __future__ import annotations

import os
import pwd
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.errors import CallerError, HostError
from sandboxd.host.directories import TEMPORARY_PARENT
from sandboxd.policy.display import neutralise
from sandboxd.rpc.socket import ListeningSocket, take_passed
from sandboxd.runtime.certificate_trust import OwnTrust
from sandboxd.settings.files.trust import OpenedPlaces, opened_file
from sandboxd_client import programs
from sandboxd_client.records import dataclass, field
from sandboxd_client.wire.location import LocationError, socket_path


class ServeArguments(Protocol):
    """Options of `sandboxd serve`: absolute paths, `resolve` as written (NAME=ADDR)."""

    @property
    def socket(self) -> str | None: ...
    @property
    def settings(self) -> str | None: ...
    @property
    def log_format(self) -> str | None: ...
    @property
    def resolve(self) -> Sequence[str]: ...
    @property
    def idle_exit(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Configuration of one daemon, with the environment that settings read."""

    socket: str
    home: str
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: str | None = None
    pins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    temporary: str = TEMPORARY_PARENT
    """Parent of the private directory with the temporary directories of sessions."""
    platform: str = "linux"
    managed_root: str = "/"
    passed: ListeningSocket | None = None
    """Socket that the service manager opened."""
    idle_exit_s: float | None = None
    """Seconds without use after which the daemon ends; None: never."""

    def settings_places(self, own_paths: tuple[str, ...] = (), lock_directory: str = "") -> SettingsPlaces:
        """Return the sources of settings; no rule may open `own_paths`."""
        return SettingsPlaces(
            environment=self.environment,
            home=self.home,
            cli_file=self.settings,
            own_paths=own_paths,
            managed_root=self.managed_root,
            lock_directory=lock_directory,
            earlier=OpenedPlaces(opened_file(self.home)),
        )


def configure(options: ServeArguments, environment: dict[str, str]) -> DaemonConfig:
    """Return the configuration; removes the service manager's variables."""
    passed = take_passed(environment)
    if passed is not None:
        path = passed.path
    elif options.socket is not None:
        path = options.socket
    else:
        try:
            path = socket_path(environment)
        except LocationError as error:
            raise HostError(error.slug, error.message, hint=error.hint) from error
    return DaemonConfig(
        socket=path,
        home=_home(environment),
        environment=environment,
        settings=options.settings,
        pins=parse_pins((*options.resolve, *environment.get("SANDBOXD_RESOLVE", "").split(","))),
        platform=platform_name(),
        passed=passed,
        idle_exit_s=options.idle_exit,
    )


def _home(environment: Mapping[str, str]) -> str:
    """Return $HOME, or the home of the user database where it is not set.

    A program that the user runs in a project can set HOME to a directory of that project. Raises HostError
    `home_opened` where commands could write in it."""
    real, home = programs.home_of_the_user(), environment.get("HOME", "")
    if not home:
        return pwd.getpwuid(os.geteuid()).pw_dir
    opened = "" if os.path.realpath(home) == os.path.realpath(real) else programs.opened_place((home,), (real,))
    if opened:
        raise HostError(
            "home_opened",
            f"HOME is {neutralise(home)}, and commands could write {neutralise(opened)}: its settings may be theirs",
            hint=f"start it with: HOME={real} sandboxd serve",
        )
    return home


def own_trust(environment: Mapping[str, str], homes: Iterable[str]) -> OwnTrust:
    """Return the certificate authorities that the daemon believes: those of its environment, else of the system.

    Files that no command can write are believed. Others are too, unless commands could write them: every sandbox
    protects them from now on."""
    default = ssl.get_default_verify_paths()
    file = environment.get("SSL_CERT_FILE") or default.openssl_cafile
    directories = (environment.get("SSL_CERT_DIR") or default.openssl_capath).split(":")
    paths = tuple(os.path.abspath(path) for path in (file, *directories) if path and os.path.exists(path))
    guarded = tuple(path for path in paths if programs.why_writable(path))
    ways = [os.path.dirname(place) for path in guarded for place, _ in programs.places_on(path)]
    return OwnTrust(paths, guarded, programs.opened_place((*guarded, *ways), homes) if guarded else "")


def parse_pins(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse `NAME=ADDR` items. Raises CallerError `resolve_invalid`."""
    pins: dict[str, list[str]] = {}
    for text in filter(None, (text.strip() for text in texts)):
        name, separator, address = text.partition("=")
        if not (name and separator and address):
            raise CallerError("resolve_invalid", f"cannot pin {text!a}", hint="write --resolve NAME=ADDRESS")
        pins.setdefault(name, []).append(address)
    return pins


def platform_name() -> str:
    """Return the platform as settings name it (`enabledPlatforms`)."""
    linux = "wsl" if "microsoft" in os.uname().release.lower() else "linux"
    return "macos" if sys.platform == "darwin" else linux

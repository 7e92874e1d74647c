"""`sandboxd service status` on Linux: whether units, socket and daemon agree.

The exit status is 0 when they do. `agreement` is a table of what an upgrade, a move or a daemon started by hand leaves
inconsistent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from sandboxd import __version__
from sandboxd.cli.arguments import visible
from sandboxd.cli.daemon_client import print_rows
from sandboxd.cli.service.systemctl import UserManager
from sandboxd.cli.service.systemd_service import own_directory, own_service, read_text, shipped_units
from sandboxd.cli.service.systemd_units import (
    SERVICE,
    SOCKET,
    UNITS,
    listening_paths,
    says_the_same,
    unit_texts,
    why_it_cannot_start,
    written_version,
)
from sandboxd_client import Client
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import dataclass
from sandboxd_client.transport.activation import daemon_pid
from sandboxd_client.transport.connection import usable_path

DISAGREE = 1


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """The inputs of `agreement`; `service` and `socket` are unit properties.

    `files` are the texts of the units in force, `expected` those that this program would write; both are empty where
    the units of a distribution are used."""

    service: Mapping[str, str]
    socket: Mapping[str, str]
    clients: str
    """The socket of clients with this environment."""
    files: Mapping[str, str]
    expected: Mapping[str, str]
    missing_program: str = ""
    """The program of the unit, if it does not exist."""
    daemon: int | None = None
    """The process that serves at the socket of clients."""
    daemon_version: str = ""


@dataclass(frozen=True, slots=True)
class UnitProblem:
    text: str
    remedy: str


def agreement(facts: UnitFacts, version: str = __version__) -> list[UnitProblem]:
    """List inconsistencies, the first cause first."""
    service, socket = facts.service, facts.socket
    if "loaded" not in (service["LoadState"], socket["LoadState"]):
        return [UnitProblem("it is not installed", "sandboxd service install --now")]
    found: list[UnitProblem] = []

    def check(wrong: bool, text: str, remedy: str) -> None:
        if wrong:
            found.append(UnitProblem(text, remedy))

    for name, state in ((SERVICE, service), (SOCKET, socket)):
        load = state["LoadState"]
        check(load == "masked", f"{name} is masked", f"systemctl --user unmask {name}")
        check(load not in ("loaded", "masked"), f"{name} is {load}", "sandboxd service install")
    check(
        bool(facts.missing_program),
        f"the unit starts {facts.missing_program}, which does not exist",
        "install sandboxd again, then run: sandboxd service install --now",
    )
    as_expected = facts.files.keys() <= facts.expected.keys() and all(
        says_the_same(text, facts.expected[name]) for name, text in facts.files.items()
    )
    if not as_expected and not facts.missing_program:
        others = {written_version(text) or "another author" for text in facts.files.values()} - {version}
        what = f"of another version ({', '.join(sorted(others))})" if others else "not as this sandboxd writes them"
        check(True, f"the units are {what}", "sandboxd service install --now")
    check(
        "yes" in (service.get("NeedDaemonReload"), socket.get("NeedDaemonReload")),
        "systemd has not loaded the current units",
        "systemctl --user daemon-reload",
    )
    check(
        socket.get("UnitFileState") not in ("enabled", "static", "linked", ""),
        f"{SOCKET} is {socket.get('UnitFileState')}: it does not start at login",
        f"systemctl --user enable {SOCKET}",
    )
    reason_text = f": {reason}" if (reason := why_it_cannot_start(service)) else ""
    check(
        service["ActiveState"] == "failed",
        f"the service failed ({service['Result']}){reason_text}",
        f"see: journalctl --user -u {SERVICE}; then: systemctl --user restart {SOCKET}",
    )
    listening = listening_paths(socket.get("Listen", ""))
    check(
        bool(listening) and facts.clients not in listening,
        f"the socket is {', '.join(listening)}, and clients of this shell use {facts.clients}",
        "set XDG_RUNTIME_DIR and SANDBOXD_SOCKET as at a login, or: sandboxd service install --now",
    )
    by_hand = facts.daemon is not None and str(facts.daemon) != service["MainPID"]
    check(
        by_hand,
        f"a daemon that systemd did not start (pid {facts.daemon}) has the socket",
        f"sandboxd stop; systemctl --user restart {SOCKET}",
    )
    check(
        socket["ActiveState"] != "active" and not by_hand,
        f"the socket is {socket['ActiveState']}: clients start other daemons",
        f"systemctl --user restart {SOCKET}",
    )
    check(
        bool(facts.daemon_version) and facts.daemon_version != version,
        f"the running daemon is version {facts.daemon_version}, and this is {version}",
        "sandboxd restart",
    )
    return found


def show() -> int:
    manager = UserManager.reached()
    facts = collect(manager)
    problems = agreement(facts)
    print_rows(_rows(facts))
    for problem in problems:
        sys.stdout.write(f"! {visible(problem.text, 2000)}\n  {visible(problem.remedy, 2000)}\n")
    return DISAGREE if problems else 0


def collect(manager: UserManager) -> UnitFacts:
    service, socket, clients = manager.service(), manager.socket(), usable_path()
    own = own_directory()
    files = {name: text for name in UNITS if (text := read_text(os.path.join(own, name))) is not None}
    try:
        expected = unit_texts(own_service(), shipped_units()) if files else {}
    except SandboxdError:  # this installation has no units
        expected = {}
    daemon = daemon_pid(clients)
    version = ""
    if daemon is not None:  # a client would start a daemon
        try:
            with Client(clients, autostart=False) as box:
                version = box.status().version
        except SandboxdError:
            version = ""
    program = manager.program()
    return UnitFacts(
        service,
        socket,
        clients,
        files,
        expected,
        missing_program=program if program and not os.path.exists(program) else "",
        daemon=daemon,
        daemon_version=version,
    )


def _rows(facts: UnitFacts) -> list[tuple[str, str]]:
    service, socket = facts.service, facts.socket
    written = written_version(facts.files.get(SERVICE, ""))
    by = f"written by sandboxd {written}" if written else "of the distribution"
    rows = [("units", f"{service['FragmentPath']} ({by})" if service.get("FragmentPath") else "none")]
    for path in filter(None, service.get("DropInPaths", "").split(" ")):
        rows.append(("", f"{path} (of the user)"))
    listening = ", ".join(listening_paths(socket.get("Listen", ""))) or "nowhere"
    rows.append(
        ("socket", f"{socket['ActiveState']}, {socket.get('UnitFileState') or 'not installed'}, at {listening}")
    )
    state = f"{service['ActiveState']} ({service.get('SubState', '')})"
    if service["MainPID"] != "0":
        state += f", pid {service['MainPID']}"
        state += f", version {facts.daemon_version}" if facts.daemon_version else ""
        if service.get("NRestarts", "0") != "0":
            state += f", restarted {service['NRestarts']} times after failures"
    elif socket["ActiveState"] == "active":
        state += ", started by the next connection"
    rows.append(("daemon", state))
    if service.get("StatusText"):
        rows.append(("says", service["StatusText"]))
    return rows

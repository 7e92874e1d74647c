"""`sandboxd web`: a page that shows what happens and takes answers, and the sessions that it has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, Parsed, UsageError, suggestion, visible
from sandboxd.cli.control.status import duration
from sandboxd.cli.daemon_client import client, print_json
from sandboxd.cli.output import fail, note, warn
from sandboxd_client import programs
from sandboxd_client.wire.location import LocationError

_ACTIONS = ("sessions", "revoke", "pair", "token")
_ROLES = ("watch", "answer", "administer")
HELP = Help(
    "web [sessions | revoke ID… | pair [CODE] | token NAME]",
    """Serve a page for browsers: what runs, questions, what was blocked, the policy and the layers.

  (nothing)   start the page and print a link that opens it once; another one where it runs
  sessions    list the browsers, devices and programs that were let in
  revoke ID…  end sessions of these; all ends every one
  pair        list devices that wait, with the code that each shows
  pair CODE   let the device with this code in, with the --role
  token NAME  print a token for a program, which speaks JSON-RPC over WebSocket with the --role""",
    (
        Option("--open", "open the link in a browser"),
        Option("--port", "the port (default: one that is free)", value="PORT"),
        Option("--listen", "an address of this machine for other devices, with TLS (127.0.0.1)", value="ADDRESS"),
        Option("--certificate", "the certificate for TLS, as PEM (default: one is made)", value="FILE"),
        Option("--key", "the key of the certificate, as PEM", value="FILE"),
        Option("--host", "another name of the page, as a forwarded port has it: NAME:PORT", value="NAME", many=True),
        Option("--role", "what the link, device or program may do (administer; pair, token: watch)", value="ROLE",
               only=_ROLES),
        JSON,
        NO_AUTOSTART,
    ),
    ("web --open", "web pair 123456 --role answer", "web token bot --role answer"),
    words=_ACTIONS,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if action and action not in _ACTIONS:
        raise UsageError(f"unknown web command {visible(action)}", suggestion(action, _ACTIONS))
    if len(rest) > {"revoke": sys.maxsize, "pair": 1, "token": 1}.get(action, 0):
        raise UsageError(f"unexpected word {visible(rest[-1], 60)}")
    if action in ("revoke", "token") and not rest:
        raise UsageError(f"web {action} needs {'a name' if action == 'token' else 'the id of a session'}")
    try:
        from sandboxd.web import page
    except ImportError as error:
        if error.name is None or not error.name.startswith(("aiohttp", "cryptography")):
            raise
        return fail(
            f"sandboxd web needs the package {error.name}, which is not installed", "pip install 'sandboxd[web]'"
        )
    try:
        with client(parsed) as box:
            path = page.path_beside(box.socket)
            if action:
                return _act(path, action, rest, parsed)
            role = parsed.get("role") or "administer"
            running = page.ask(path, {"act": "link", "role": role})
            if running is not None:
                _announce(
                    parsed,
                    path,
                    running["url"],
                    running["fingerprint"],
                    f"the page runs already (pid {running['pid']})",
                )
                return 0
            box.connect()
            wanted = page.Wanted(box.socket, os.path.expanduser("~"), **_where(parsed))

            def started(one: page.PageStart) -> None:
                for warning in one.warnings:
                    warn(warning)
                _announce(parsed, path, one.link(page.ROLES[role]), one.fingerprint, "Ctrl-C ends the page")
    except LocationError as error:
        return fail(error.message, error.hint)
    asyncio.run(page.run(wanted, started))
    return 0


def _where(parsed: Parsed) -> dict[str, Any]:
    import ipaddress

    address, port = parsed.get("listen") or "127.0.0.1", parsed.get("port") or "0"
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(f"--listen needs an address of this machine, not {visible(address)}") from None
    if found.is_unspecified or found.is_multicast:
        raise UsageError("--listen needs one address, by which browsers call the page", "list them with: ip address")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError("--port needs a number below 65536")
    if "key" in parsed and "certificate" not in parsed:
        raise UsageError("--key needs --certificate")
    names = tuple(name.lower() for name in parsed.many("host"))
    files = {name: os.path.abspath(parsed.get(name)) for name in ("certificate", "key") if name in parsed}
    return {"address": str(found), "port": int(port), "authorities": names, **files}


def _announce(parsed: Parsed, socket: str, url: str, fingerprint: str, more: str) -> None:
    if "json" in parsed:
        print(json.dumps({"url": url, "fingerprint": fingerprint}), flush=True)
    else:
        print(url, flush=True)
        note("sandboxd: the link opens the page once, within ten minutes; run sandboxd web again for another one")
        if fingerprint:
            note(f"sandboxd: SHA-256 fingerprint of the certificate: {fingerprint}")
            note("sandboxd: other devices open the address without the part from # on, and then: sandboxd web pair")
        note(f"sandboxd: {more}")
    if "open" in parsed:
        _open(url, os.path.dirname(socket))


def opening_page(url: str) -> str:
    """Return a page that leads to another address at once."""
    return f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><title>sandboxd</title>\n'


def _open(url: str, directory: str) -> None:
    """Open a browser. The link is in a private file, which no command sees: all users see arguments of processes."""
    name = "open" if sys.platform == "darwin" else "xdg-open"
    found = programs.find(name, os.environ.get("PATH", ""))
    if found.path is None:
        why = f" ({found.why})" if found.why else ""
        warn(f"no browser can be opened: {name} was not found{why}")
        return
    for name in os.listdir(directory):  # of a process that ended before the browser had read its file
        if name.startswith("web-") and name.endswith(".html"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))
    with tempfile.NamedTemporaryFile("w", prefix="web-", suffix=".html", dir=directory, delete=False) as file:
        file.write(opening_page(url))
    null = subprocess.DEVNULL
    environment = programs.without_code(os.environ)
    argv = [found.path, f"file://{file.name}"]
    opening = subprocess.Popen(argv, env=environment, stdin=null, stdout=null, stderr=null)
    import threading

    def forget() -> None:
        opening.wait()
        time.sleep(_READ_S)
        with contextlib.suppress(OSError):
            os.unlink(file.name)

    threading.Thread(target=forget, name="browser", daemon=True).start()


_READ_S = 20.0
"""Seconds in which a browser reads the file."""


def _act(path: str, action: str, rest: list[str], parsed: Parsed) -> int:
    from sandboxd.web.control import ask

    role = parsed.get("role") or "watch"
    rows = {
        "sessions": {"act": "sessions"},
        "pair": {"act": "approve", "code": rest[0].replace(" ", ""), "role": role} if rest else {"act": "pairings"},
        "token": {"act": "token", "name": rest[0] if rest else "", "role": role},
    }
    found: dict[str, Any] | None = {"sessions": []}
    for request in [{"act": "revoke", "session": one} for one in rest] if action == "revoke" else [rows[action]]:
        found = ask(path, request)
        if found is None:
            return fail("the page is not running", "start it with: sandboxd web")
        if action == "revoke" and not found["sessions"]:
            return fail(
                f"no session has the id {visible(request['session'], 60)}", "list them with: sandboxd web sessions"
            )
    assert found is not None
    if "json" in parsed:
        print_json(found)
    elif action == "sessions":
        for one in found["sessions"]:
            left = duration(one["expires"] - time.time())
            print(f"{one['id']}  {one['role']:<10}  {one['kind']:<7}  {visible(one['name'], 60)}, ends in {left}")
    elif action == "token":
        print(found["token"])
        note(f"sandboxd: for {found['url']}; end it with: sandboxd web revoke {found['session']}")
    elif action == "pair" and rest:
        note(f"sandboxd: {visible(found['name'], 60)} was let in, to {role}")
    elif action == "pair":
        for one in found["pairings"]:
            print(f"{one['code']}  {visible(one['name'], 60)} at {one['address']}")
        if not found["pairings"]:
            note("sandboxd: no device waits")
    return 0

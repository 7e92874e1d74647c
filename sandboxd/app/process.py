"""Process around a daemon: environment, signals, exit status, restart."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Mapping

from structlog.typing import FilteringBoundLogger

from sandboxd.app.compose import platform_factory, run_daemon
from sandboxd.app.configuration import DaemonConfig, ServeArguments, configure
from sandboxd.app.handover import RunningDaemon, hand_over
from sandboxd.daemon.lifecycle import (
    ServiceManager,
    StopRequest,
    raise_descriptor_limit,
    signals_handled,
    signals_heard,
)
from sandboxd.daemon.log import LEVELS, StandardLogs, choose_format, make_logger
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.restart import descriptor_store
from sandboxd.daemon.restart.restarting import HANDOVER, DaemonProgram, answer_trial, take_handed_over, take_trial
from sandboxd.daemon.startup import StartUp
from sandboxd.daemon.state import DaemonState
from sandboxd.errors import DaemonError, HostError, way_out
from sandboxd.handover.document import Incoming, Outgoing, read_document
from sandboxd.policy.display import neutralise
from sandboxd_client import programs
from sandboxd_client.wire.location import LocationError, log_paths, socket_path

EXIT_CANNOT_START = 125
_YOUNG = 10_000
"""Objects between two collections: most of a call end with it, and are looked at in vain before."""


def main(options: ServeArguments) -> int:
    """Run the daemon; return the exit status. Writes a failed start to stderr."""
    environment = dict(os.environ)
    program = DaemonProgram.own(environment)
    trial = take_trial(environment)
    log_format = choose_format(options.log_format, sys.stderr, environment.pop("JOURNAL_STREAM", ""))
    level = LEVELS.get(environment.get("SANDBOXD_LOG_LEVEL", "info").lower(), logging.INFO)
    log = make_logger(sys.stderr, log_format, level, _own_log(options, environment))
    manager = ServiceManager(os.environ)
    try:
        with StandardLogs.installed(log):
            os.environ.pop(HANDOVER, None)
            before = None if trial else take_handed_over(environment)
            stored: tuple[str, ...] = ()
            store_size = environment.pop("FDSTORE", "")
            if before is None and not trial:
                before, stored = descriptor_store.take_stored(environment)
            config = configure(options, environment)
            if trial:
                sys.stdout.write(try_out(config, log) + "\n")
                return 0
            raise_descriptor_limit()
            store = None
            if manager.address:
                store = descriptor_store.Store(manager.address, store_size)
            if store is not None and before is not None and before.crashed:
                store.old = stored  # stored until the new names are: this daemon may crash too
            elif stored:
                descriptor_store.empty(manager.address, stored)
            try:
                while (end := asyncio.run(_serve(config, log, manager, program, before, store))) is not None:
                    outgoing, next_program = end
                    try:
                        if outgoing.for_manager:
                            descriptor_store.keep(manager.address, outgoing)
                            break
                        next_program.execute(outgoing)
                    except OSError as error:
                        log.error("cannot hand over to another daemon; this one continues", reason=str(error))
                        before = read_document(outgoing.text())
            finally:
                if store is not None and store.old:  # it ended this daemon, and would end the next one too
                    descriptor_store.empty(manager.address, store.take_old())
    except (DaemonError, OSError) as fault:
        why = fault if isinstance(fault, DaemonError) else _unusable(fault)
        manager.cannot_start(neutralise(why.message))
        hint = f"hint: {neutralise(why.hint)}\n" if why.hint else ""
        sys.stderr.write(f"sandboxd: {neutralise(why.message)}\n{hint}")
        return EXIT_CANNOT_START
    return 0


def _own_log(options: ServeArguments, environment: Mapping[str, str]) -> str:
    """Return the log file of an automatic start, which standard error leads to; empty without one."""
    home = environment.get("HOME") or programs.home_of_the_user()
    with contextlib.suppress(LocationError, OSError, ValueError):
        opened = os.fstat(sys.stderr.fileno())
        for path in log_paths(options.socket or socket_path(environment), home):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(opened, os.lstat(path)):
                    return path
    return ""


def _unusable(error: OSError) -> HostError:
    """Return the error for a directory or socket that the daemon cannot use."""
    where = f": {error.filename}" if isinstance(error.filename, str) else ""
    return HostError(
        "daemon_failed",
        f"cannot use the daemon's directories{where}: {error.strerror or error}",
        hint=way_out(error, f"move {error.filename} away" if where else "see the log of the kernel: dmesg"),
    )


def try_out(config: DaemonConfig, log: FilteringBoundLogger) -> str:
    """Return the answer of a program fit to take over. Raises DaemonError."""
    platform_factory(config.platform)
    Policies(config.settings_places(), log)
    return answer_trial()


async def _serve(
    config: DaemonConfig,
    log: FilteringBoundLogger,
    manager: ServiceManager,
    program: DaemonProgram,
    before: Incoming | None,
    store: descriptor_store.Store | None,
) -> tuple[Outgoing, DaemonProgram] | None:
    """Serve until it is asked to stop; return the hand-over document of a restart, and the program that takes over."""
    outgoing, chosen = None, program
    stop = StopRequest()
    running: RunningDaemon | None = None

    def reload() -> None:
        if running is not None:
            manager.reloading()
            running.state.reloading.reload()
            manager.ready(_state(running.state))

    # From the first to the last step, so that no signal is lost.
    with signals_handled(stop, reload, goes_on=lambda: outgoing is not None):
        async with run_daemon(
            config,
            log,
            stop=stop,
            startup=StartUp() if before else StartUp.of_this_process(),
            program=program,
            before=before,
            store=store,
        ) as daemon:
            running = daemon
            gc.collect()
            gc.freeze()  # objects of the start stay; collecting them again takes 20 ms each time
            gc.set_threshold(_YOUNG)
            manager.ready(_state(daemon.state))
            log.info("ready", socket=config.socket, pid=os.getpid(), seconds=round(daemon.state.startup.seconds, 3))
            with manager.watchdog_fed():
                reason = await stop.wait()
                for_manager = not stop.restart and await _comes_again(manager, daemon, reason)
                restarts = stop.restart or for_manager
                log.info("restarting" if restarts else "stopping", reason=reason)
                if restarts:
                    outgoing, chosen = await hand_over(daemon, for_manager), daemon.restarting.chosen or program
                    outgoing.ends_at_once = lambda: stop.restart and stop.overruled
            manager.stopping() if outgoing is None else manager.restarting(for_manager)
        running = None
        if outgoing is not None:
            await signals_heard()
    if outgoing is None:
        log.info("stopped")
        return None
    return outgoing, chosen


async def _comes_again(manager: ServiceManager, daemon: RunningDaemon, reason: str) -> bool:
    """Return whether the service manager restarts this daemon."""
    if not manager.address or reason != "SIGTERM" or not daemon.restarting.supported:
        return False
    return await descriptor_store.restart_intended()


def _state(daemon: DaemonState) -> str:
    """Return the status line for `systemctl status`."""
    own = daemon.policies.own
    problems = len(own.complaints)
    return f"listening at {daemon.socket}, settings generation {daemon.policies.generation}" + (
        f", {problems} warnings (see: sandboxd status)" if problems else ""
    )

"""Composition of the parts that each command of a daemon gets."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

from sandboxd.app.platform import ExplainingPlanner, Platform
from sandboxd.daemon.metrics import Metrics
from sandboxd.daemon.policy_queries import ExplainPath, ExplainSocket
from sandboxd.plan.request import Place
from sandboxd.policy.decision import Decision
from sandboxd.policy.explain.tools import with_tool
from sandboxd.policy.hosts.parent_proxies import EnvironmentProxies
from sandboxd.policy.model import Policy
from sandboxd.proxy.dial import Dialer, PinnedResolver
from sandboxd.proxy.fair_share import Turns
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.host_addresses import ClosedPorts, HostAddresses
from sandboxd.proxy.limits import Room, SessionRoom
from sandboxd.proxy.server import ProxyServer
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.upstream.parent_dialer import ParentDialer
from sandboxd.runtime.certificate_trust import CertificateTrust
from sandboxd.runtime.command import Command
from sandboxd.runtime.events import Connected, Disconnected, Event, Events, RunEnded, RunPrepared, RunStarted
from sandboxd.runtime.prompts.connection_prompts import asking, asking_requests
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.session import SandboxSession
from sandboxd.runtime.temporary_directories import TemporaryRoot

_HURRIES: Final[Mapping[type, float]] = {RunPrepared: 0.02, RunStarted: 0.01, RunEnded: 0.005}
"""Seconds after an event in which the connections of other commands give way: until the command has started, has ended
if it is short, and its client has been told."""


def placing(
    home: str,
    directory: str,
    base: str,
    machine: Platform,
    name_files: tuple[tuple[str, str], ...],
    trust: CertificateTrust,
    private: Callable[[], tuple[str, ...]],
) -> Callable[..., Place]:
    """Return a function that makes the place of a command."""
    uid = os.geteuid()

    def place(cwd: str, project_root: str, session_tmp: str, mask_file: str) -> Place:
        return Place(
            cwd=cwd,
            project_root=project_root,
            session_tmp=session_tmp,
            home=home,
            uid=uid,
            runtime_dir=directory,
            mask_file=mask_file,
            temporary_base=base,
            private=private(),
            daemon_paths=(*machine.daemon_paths(), *trust.own.guarded),
            overlays=machine.overlays(session_tmp, home),
            captured=machine.captures(),
            name_files=name_files,
            trust_directory=trust.directory,
        )

    return place


def explaining(planner: ExplainingPlanner, place: Callable[..., Place], temporary: TemporaryRoot) -> ExplainPath:
    async def explain(
        policy: Policy, cwd: str, project: str, session_id: str | None, path: str, write: bool
    ) -> Decision:
        there = place(cwd, project, temporary.session(session_id or "explain"), temporary.mask)
        return await planner.explain(policy, there, path, write=write)

    return explain


def explaining_sockets(
    planner: ExplainingPlanner, place: Callable[..., Place], temporary: TemporaryRoot
) -> ExplainSocket:
    async def explain(policy: Policy, cwd: str, project: str, session_id: str | None, path: str) -> Decision:
        there = place(cwd, project, temporary.session(session_id or "explain"), temporary.mask)
        return await planner.explain_socket(policy, there, path)

    return explain


def put_commands_first(events: Events, *all_turns: Turns) -> None:
    """Reduce the shares of others whenever a command starts or ends."""

    def hurry(event: Event) -> None:
        if (seconds := _HURRIES.get(type(event))) is not None:
            for turns in all_turns:
                turns.hurry(seconds)

    events.listen(hurry)


def make_proxies_of(
    resolver: PinnedResolver,
    prompts: Prompts,
    proxies: EnvironmentProxies,
    events: Events,
    metrics: Metrics,
    turns: Turns,
    trust: CertificateTrust,
    closed_ports: ClosedPorts,
) -> Callable[[Callable[[], Policy], Command, SandboxSession], ProxyServer]:
    """Return a maker of a command's proxies; their listeners identify the command."""
    host_addresses = HostAddresses()
    room = Room(resource.getrlimit(resource.RLIMIT_NOFILE)[0], turns)
    shares: WeakKeyDictionary[SandboxSession, tuple[SessionRoom, PinnedResolver]] = WeakKeyDictionary()
    dialer = Dialer()
    parents = ParentDialer(dialer, resolver)

    def make(policy: Callable[[], Policy], command: Command, session: SandboxSession) -> ProxyServer:
        room_of_session, names = shares.setdefault(session, (SessionRoom(room), resolver.share()))
        gate = Gate(
            lambda: policy().network,
            asking(prompts, session, command) if session.spec.asks else None,
            names,
            resolver.pins,
            host_addresses=host_addresses,
            closed_ports=closed_ports,
            grants=lambda: session.grants.host_rules(command.wrap_id),
            proxies=proxies,
            can_ask=prompts.can_ask,
            measured=metrics.gate,
            bounds=session.bounds,
            advised=lambda decision: with_tool(decision, command.text),
            ask_request=asking_requests(prompts, session, command) if session.spec.asks else None,
        )

        def opened(connection: OutboundConnection) -> None:
            events.tell(
                Connected(
                    session.id,
                    command.command_id,
                    connection.operation,
                    connection.host.name,
                    connection.port,
                    str(connection.address),
                    connection.decision,
                )
            )

        def closed(connection: OutboundConnection, sent: int, received: int) -> None:
            events.tell(Disconnected(session.id, command.command_id, sent, received))

        return ProxyServer(
            gate,
            dialer,
            command.blocked,
            command.wrap_id,
            room=room_of_session,
            parents=parents,
            user_http=lambda: policy().network.http_proxy_port,
            user_socks=lambda: policy().network.socks_proxy_port,
            opened=opened,
            closed=closed,
            authority=lambda: trust.authority(policy().network),
            vault=session.credentials,
        )

    return make

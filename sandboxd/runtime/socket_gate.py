"""Unix sockets of a running command, decided by the policy of each moment.

The helper knows the sockets that were bound under it, and asks about all others. Where the listed paths lead is looked
at each time, in a worker thread: an agent's socket moves, and a connect is rare. In a place that the command can write
it is not the path that counts but the very socket: one that was there before the command ran, or one that the kernel
says was bound in the session."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sandboxd.backends.base import AnswerConnect, ConnectAttempt
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.host_facts import FoundSocket, ResolvedPath, SocketFile, SocketsAtStart
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.model import NetworkPolicy
from sandboxd.policy.sockets.socket_decisions import by_place, decide_socket, open_sockets
from sandboxd_client.records import dataclass

DECISIONS_AT_ONCE = 4
"""Decisions of one command in progress, so that threads are left for others."""
CONNECTS_AT_ONCE = 64
"""Connects of one command that wait for a decision."""
_NO_SOCKETS = Decision(Behavior.DENY, Reason.SOCKET_NOT_LISTED, "no Unix socket is reachable")

Resolve = Callable[[str], Awaitable[ResolvedPath]]
FindSockets = Callable[[Sequence[tuple[str, str]]], SocketsAtStart]
"""Finds sockets, given pairs of a path on the host and inside; blocks on the disk."""
_LATE = "it was moved there, or bound outside the sandbox after the command had started"
_UNSEEN = "it was not found at the start: there was more to look through than is"
_UNTOLD = "the helper of this command, of an earlier version, does not say which socket it is"


@dataclass(frozen=True, slots=True)
class SocketsInside:
    """The sources of a SocketGate on the sockets of one command.

    `find` looks for those on the host, in `temporary`, which is its `/tmp`, and elsewhere. `is_bound` says whether one
    was bound in the sandbox."""

    find: FindSockets
    temporary: str
    is_bound: Callable[[SocketFile], Awaitable[bool]]


class SocketGate:
    """Decisions on the Unix sockets that one command connects to.

    `network` gives the policy now, `resolve` follows a path on the host, `own` are the daemon's own directories.
    `attribution` tells what the command itself can change; without it no listed symbolic link is followed, no socket
    is the session's own, and every place counts as one that the command can write."""

    def __init__(
        self,
        network: Callable[[], NetworkPolicy],
        resolve: Resolve,
        attribution: Callable[[], Awaitable[Attribution | None]],
        own: Sequence[str],
        inside: SocketsInside,
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._attribution = attribution
        self._own = tuple(own)
        self._inside = inside
        self._turns = asyncio.Semaphore(DECISIONS_AT_ONCE)
        self.at_start: SocketsAtStart | None = None
        """None until `look`, and for the command of an earlier daemon that did not look."""
        self._resumed = False

    def resume(self, at_start: SocketsAtStart | None) -> None:
        """Resume the sockets that an earlier daemon has seen."""
        self.at_start, self._resumed = at_start, True

    async def look(self) -> None:
        """Find what stands in listed places that the command can write.

        To be awaited before it runs."""
        attribution = await self._attribution()
        if attribution is None:
            return
        ends = [attribution.leads_to(await self._resolve(one.path)) for one in self._network().allow_unix_sockets]
        listed = [real for real, trusted in ends if trusted]
        temporary = (await self._resolve(self._inside.temporary)).real
        seen = await asyncio.to_thread(self._look, attribution, listed, temporary)
        stayed = [one for one in seen.found if await self._has_stayed(one, attribution)]
        self.at_start = replace(seen, found=tuple(stayed))

    async def _has_stayed(self, found: FoundSocket, attribution: Attribution) -> bool:
        """Tell whether a socket is where its server has bound it, if known.

        An earlier command may have moved it. Nothing of the host can be moved into the session's own `/tmp`, which is a
        mount."""
        name = found.bound_at
        if not name.startswith("/") or name.startswith("/proc/"):  # it depends on who has bound it
            return True
        if name == found.path or attribution.is_private_socket(found.path):
            return True
        directory = await self._resolve(posixpath.dirname(name))
        resolved = replace(directory, real=posixpath.join(directory.real, posixpath.basename(name)))
        return attribution.is_name_of(resolved, found.path)

    def _look(self, attribution: Attribution, listed: list[str], temporary: str) -> SocketsAtStart:
        writable = attribution.writable()
        places = [path for path in listed if attribution.can_bring(path)]
        places += [path for path in writable if any(is_below(path, one) for one in listed)]
        found = self._inside.find([(temporary, "/tmp"), *((path, path) for path in dict.fromkeys(places))])
        return replace(found, writable=writable)

    async def decide(self, path: str, file: SocketFile | None = None) -> Decision:
        """Decide on a path that is real in the sandbox: ALLOW or DENY.

        It is empty for a socket without one. `file` is the very socket that would be connected."""
        async with self._turns:
            return await self._decide(path, file)

    async def _decide(self, path: str, file: SocketFile | None) -> Decision:
        network = self._network()
        attribution = await self._attribution()
        listed = [rule.path for rule in network.allow_unix_sockets]
        found = await asyncio.gather(*(self._resolve(one) for one in (*listed, *self._own)))
        ends = [
            (one.real, not one.links) if attribution is None else attribution.leads_to(one)
            for one in found[: len(listed)]
        ]
        own = (*self._own, *(one.real for one in found[len(listed) :]))
        sockets = open_sockets(network, ends, own)

        def by_path(one: str, brought: str = "") -> Decision:
            private = attribution is not None and attribution.is_private_socket(one)
            return decide_socket(one, sockets, private=private, brought=brought)

        decision = by_path(path)
        in_doubt = by_place(decision, sockets) and self._can_bring(path, attribution)
        if (decision.allowed and not in_doubt) or decision.reason is Reason.SOCKET_OWN or not path:
            return decision
        unbound = await self._unbound(file)
        if not unbound:
            return Decision(Behavior.ALLOW, Reason.SESSION_TMP, f"{path} was bound in this session")
        at_start = self.at_start or SocketsAtStart()
        if not in_doubt or (file and any(by_path(one).allowed for one in at_start.paths_of(file))):
            return decision
        return by_path(path, unbound)

    def _can_bring(self, path: str, attribution: Attribution | None) -> bool:
        """Tell whether the command could have put a socket at a path.

        Mounts stay as they were at the start. So after a restart, when the policy may be another one, what could be
        written then counts too."""
        if attribution is None or attribution.can_bring(path):
            return True
        if not self._resumed:
            return False
        return self.at_start is None or any(is_below(path, one) for one in self.at_start.writable)

    async def _unbound(self, file: SocketFile | None) -> str:
        """Give the reason to take a socket for one of the host, or an empty text."""
        if file is None:
            return _UNTOLD
        try:
            if await self._inside.is_bound(file):
                return ""
        except OSError as error:
            return f"it cannot be seen whether it was bound in the sandbox: {error.strerror or error}"
        return _LATE if self.at_start is None or self.at_start.complete else _UNSEEN


class SocketConnects:
    """The connects of one command that wait for their decision.

    `decide` is that of a SocketGate, without which nothing is reachable; `refused` hears of each that is denied."""

    def __init__(
        self,
        wrap_id: str,
        decide: Callable[[ConnectAttempt], Awaitable[Decision]] | None,
        refused: Callable[[ConnectAttempt, Decision], None],
    ) -> None:
        self._name = f"unix-connect-{wrap_id}"
        self._decide = decide
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()

    def decide(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        """Decide on a connect; `answer` is called once, with 0 or an errno."""
        if len(self._tasks) >= CONNECTS_AT_ONCE:
            answer(errno.EAGAIN)  # as connect(2) says where a backlog is full
            return
        task = asyncio.get_running_loop().create_task(self._answer(attempt, answer), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        number = errno.EACCES
        try:
            decision = _NO_SOCKETS if self._decide is None else await self._decide(attempt)
            if decision.allowed:
                number = 0
            else:
                self._refused(attempt, decision)
        finally:
            answer(number)

    async def settled(self, patience_s: float) -> None:
        """Return when all are answered, after `patience_s` at the latest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    def close(self) -> None:
        """Refuse the connects that still wait after the end of the command."""
        for task in self._tasks:
            task.cancel()

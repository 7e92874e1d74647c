"""Unix sockets of one running command: each connect is decided by the policy of that moment (design 7).

Where the listed paths lead is looked at each time, in a worker thread: an agent's socket moves, and a connect is rare.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence

from sandboxd.backends.base import Answer, ConnectAttempt
from sandboxd.plan.attribution import Attribution
from sandboxd.plan.facts import Resolved
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.policy import NetworkPolicy
from sandboxd.policy.socket_decisions import decide_socket, open_sockets

DECISIONS_AT_ONCE = 4
"""Of one command: one that connects in a loop must not take all the daemon's worker threads."""
CONNECTS_AT_ONCE = 64
"""Of one command, which wait for a decision."""
_NO_SOCKETS = Decision(Behavior.DENY, Reason.SOCKET_NOT_LISTED, "no Unix socket is reachable")

Resolve = Callable[[str], Awaitable[Resolved]]


class SocketGate:
    """`network` gives the policy now, `resolve` follows a path on the host, `own` are the daemon's own directories.
    `attribution` gives what tells what the command itself can change; without it no listed symbolic link is followed,
    and no socket is the session's own."""

    def __init__(
        self,
        network: Callable[[], NetworkPolicy],
        resolve: Resolve,
        attribution: Callable[[], Attribution | None],
        own: Sequence[str],
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._attribution = attribution
        self._own = tuple(own)
        self._turns = asyncio.Semaphore(DECISIONS_AT_ONCE)

    async def decide(self, path: str) -> Decision:
        """ALLOW or DENY for a path that is real in the sandbox; empty for a socket without one."""
        async with self._turns:
            return await self._decide(path)

    async def _decide(self, path: str) -> Decision:
        network = self._network()
        listed = [rule.path for rule in network.allow_unix_sockets]
        found = await asyncio.gather(*(self._resolve(one) for one in (*listed, *self._own)))
        ends = [self._end(one) for one in found[: len(listed)]]
        own = (*self._own, *(one.real for one in found[len(listed) :]))
        attribution = self._attribution()
        private = attribution is not None and attribution.is_private_socket(path)
        return decide_socket(path, open_sockets(network, ends, own), private=private)

    def _end(self, resolved: Resolved) -> tuple[str, bool]:
        attribution = self._attribution()
        return (resolved.real, not resolved.links) if attribution is None else attribution.leads_to(resolved)


class SocketConnects:
    """The connects of one command that wait for their decision. `decide` is that of a SocketGate, without which nothing
    is reachable; `refused` hears of each that is denied."""

    def __init__(
        self,
        wrap_id: str,
        decide: Callable[[str], Awaitable[Decision]] | None,
        refused: Callable[[ConnectAttempt, Decision], None],
    ) -> None:
        self._name = f"unix-connect-{wrap_id}"
        self._decide = decide
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()

    def decide(self, attempt: ConnectAttempt, answer: Answer) -> None:
        """`answer` is called once, with 0 or an errno."""
        if len(self._tasks) >= CONNECTS_AT_ONCE:
            answer(errno.EAGAIN)  # as connect(2) says where a backlog is full
            return
        task = asyncio.get_running_loop().create_task(self._answer(attempt, answer), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, attempt: ConnectAttempt, answer: Answer) -> None:
        number = errno.EACCES
        try:
            decision = _NO_SOCKETS if self._decide is None else await self._decide(attempt.address)
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
        """The command has ended: whatever is still open is refused."""
        for task in self._tasks:
            task.cancel()

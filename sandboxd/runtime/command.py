"""One wrap and its processes, from the ticket to the end of the last one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, LaunchHandle, Listeners, SandboxNetwork
from sandboxd.errors import LaunchError, PolicyError
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.host_facts import SocketFile
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.explain.inference import paths_said_to_be_denied, paths_said_to_be_missing
from sandboxd.policy.hosts.publication import Publication
from sandboxd.policy.violation import DenialEvent, limit_met
from sandboxd.proxy.fair_share import Share
from sandboxd.proxy.server import ProxyServer
from sandboxd.quantities import duration_text
from sandboxd.runtime.command_record import CommandRecord, State, close_descriptors
from sandboxd.runtime.events import RunEnded, RunStarted
from sandboxd.runtime.rate_bound import RateBound
from sandboxd.runtime.servers.published_ports import PublishedPorts
from sandboxd.runtime.servers.session_loopback import SessionLoopback
from sandboxd.runtime.socket_gate import SocketConnects, SocketGate
from sandboxd.runtime.violations.denial_events import attributed, of_output, of_socket
from sandboxd.runtime.violations.violation_store import ViolationStore
from sandboxd.runtime.wrap import SETTINGS_CHANGED, HeldSettings, WrapOutcome, WrapRequest

OUTCOME_WAIT_S = 2.0
LIMIT_GRACE_S = 1.5
"""Between TERM and KILL of a command whose time is up."""
TELLS_S = 0.5
"""How long process 1 may take to end its tree and tell the status."""
TEXT_KEPT = 4096
"""Characters of an ended command's text: a line may have millions, and some hundred commands are kept."""
CONNECTS_END_S = 1.0
"""How long connects to Unix sockets that wait for a decision may take at a restart."""


class Command:
    """One command of a session.

    `make_proxies` gives its proxy server, `on_end` is called once, after `ended`. `is_hidden` says of a command, an
    operation and a target whether settings hide that refusal. `generation` is that of the policy the sandbox was
    made under, `generation_now` that of the policy in force, which its connections meet. `attribution` knows which
    rule refuses what, `sockets` decides on Unix sockets, `home` is the user's home directory. `reads_reported`: the
    back end reports refused reads. `files_hold` says whether the files are as planned, and `remove_made` removes
    mount targets that its sandbox has made since a time. `check_published` raises
    PolicyError when policy does not let its ports be published any more. `loopback` leads to servers of the session's
    other commands."""

    def __init__(
        self,
        wrap_id: str,
        request: WrapRequest,
        *,
        violations: ViolationStore,
        make_proxies: Callable[[Command], ProxyServer],
        on_end: Callable[[Command], None],
        is_hidden: Callable[[str, str, str], bool] = lambda *_: False,
        generation: int = 0,
        generation_now: Callable[[], int] = lambda: 0,
        tell: Callable[[RunStarted | RunEnded], None] = lambda event: None,
        session_id: str = "",
        attribution: Attribution | None = None,
        sockets: SocketGate | None = None,
        home: str = "",
        reads_reported: bool = False,
        check_published: Callable[[], None] = lambda: None,
        files_hold: Callable[[], bool] = lambda: True,
        remove_made: Callable[[float], str] = lambda since: "",
        settings: HeldSettings,
        loopback: SessionLoopback | None = None,
    ) -> None:
        self.wrap_id = wrap_id
        self.command_id = request.command_id or wrap_id
        self.text = request.text
        self._request = request
        self.state = State.WAITING
        self.pid: int | None = None
        self.claimed_at: float | None = None
        self._claimed_monotonic = 0.0
        """The same on the monotonic clock, which is never set."""
        self.proxies: ProxyServer | None = None
        self._inside: SandboxNetwork | None = None
        self.published: PublishedPorts | None = None
        """The ports that the host reaches, once there are some. Closed with the command."""
        self._violations = violations
        self._make_proxies = make_proxies
        self._on_end = on_end
        self._is_hidden = is_hidden
        self.generation = generation
        self._generation_now = generation_now
        self._tell = tell
        self._session_id = session_id
        self.attribution = attribution
        self._home = home
        self.cwd = request.cwd
        self._reads_reported = reads_reported
        self.ended_at: float | None = None
        """When the last of its processes ended, in seconds that no clock setting changes."""
        self._bound = RateBound()
        self._connects: SocketConnects | None = SocketConnects(
            wrap_id, None if sockets is None else self._decide_socket, self._socket_refused
        )
        self._sockets = sockets
        self.shares_localhost = False
        """It reaches servers of the session's other commands, and they reach its own."""
        self.was_prepared = False
        """Its sandbox was there before it, and may have ended just then: another wrap may succeed."""
        self.looks_for_sockets = False
        """It can connect to some: what is there is looked for before it runs."""
        self.attributing: asyncio.Task[None] | None = None
        """Finds out `attribution`, after a restart of the daemon."""
        self._check_published = check_published
        self._files_hold = files_hold
        self._remove_made = remove_made
        self._settings = settings
        self._loopback = loopback
        self._handle: LaunchHandle | None = None
        self._started = self._is_outdated = False
        self._status: int | None = None
        self._reason: str | None = None
        self._ended = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self.time_s: float | None = None
        """The time that it may run."""
        self._time_is_up: asyncio.TimerHandle | None = None
        self._kill_at = 0.0
        """When what SIGTERM did not end is killed, by `time.monotonic`; 0 before SIGTERM."""
        self._killing: asyncio.TimerHandle | None = None

    def attach(self, handle: LaunchHandle, expires_in_s: float) -> None:
        """Take the back end's ticket, which runs out unless a client spawns the argv."""
        self._handle = handle
        self._expiry = asyncio.get_running_loop().call_later(expires_in_s, self.expire)

    def expire(self) -> None:
        """Take an unclaimed ticket back."""
        if self.state is State.WAITING and self._handle is not None:
            self._handle.cancel()
            self._reason = "no client spawned the argv in time"
            self.ended(None)

    # from one daemon to the next (docs/restarts.md)

    async def hand_over(self) -> tuple[CommandRecord, int]:
        """Let go of the listening sockets and of what came in by them.

        The record, and how many connections had to be reset."""
        left = 0.0
        if self._expiry is not None:
            left = max(self._expiry.when() - asyncio.get_running_loop().time(), 0.0)
            self._expiry.cancel()
        if self._killing is not None:
            self._killing.cancel()
        if self._connects is not None:
            await self._connects.settled(CONNECTS_END_S)
        proxies, cut = (None, 0) if self.proxies is None else await self.proxies.hand_over()
        published = None
        if self.published is not None:
            published, lost = await self.published.hand_over()
            cut += lost
        record = replace(
            self._record_of_itself(),
            expires_in_s=left,
            proxies=None if self.state is State.ENDED else proxies,
            inside=self._hand_over_inside(),
            published=published,
        )
        return record, cut

    @property
    def kept(self) -> CommandRecord:
        """Return the state of the command for its crash entry."""
        return replace(
            self._record_of_itself(),
            proxies=None if self.proxies is None else self.proxies.kept,
            inside=NO_DESCRIPTOR if self._inside is None else Descriptor(self._inside.fileno()),
            published=None if self.published is None else self.published.kept,
        )

    def _record_of_itself(self) -> CommandRecord:
        return CommandRecord(
            wrap_id=self.wrap_id,
            command_id=self.command_id,
            text=self.text,
            cwd=self._request.cwd,
            overrides=self._request.overrides,
            state=self.state,
            pid=self.pid,
            claimed_at=self.claimed_at,
            claimed_monotonic=self._claimed_monotonic,
            started=self._started,
            status=self._status,
            reason=self._reason,
            generation=self.generation,
            reads_reported=self._reads_reported,
            shares_localhost=self.shares_localhost,
            settings="" if self._started else self._settings.digest,
            sockets=None if self._sockets is None else self._sockets.at_start,
            time_s=self.time_s,
            kill_at=self._kill_at,
        )

    def _hand_over_inside(self) -> Descriptor:
        if self._inside is None or self._inside.fileno() < 0:
            return NO_DESCRIPTOR
        descriptor = os.dup(self._inside.fileno())
        self._inside.close()
        return Descriptor(descriptor)

    def resume(self, record: CommandRecord, handle: LaunchHandle | None, inside: SandboxNetwork | None) -> None:
        """Resume the state of an earlier daemon.

        Without a `handle` the command is over. `inside` is its network."""
        self._inside = inside
        if record.published is not None:
            self.published = PublishedPorts.resumed(record.published, self.wrap_id)
        self.state = record.state
        self._settings.resume(record.settings)
        if self._sockets is not None:
            self._sockets.resume(record.sockets)
        self.looks_for_sockets = not record.started
        self.pid, self.claimed_at = record.pid, record.claimed_at
        self._claimed_monotonic = record.claimed_monotonic or time.monotonic()
        self._started, self._status, self._reason = record.started, record.status, record.reason
        self.time_s = record.time_s
        self.shares_localhost = record.shares_localhost
        if record.state is State.ENDED:
            self._ended.set()
        elif handle is None:
            self._reason = self._reason or "its sandbox was lost when the daemon was restarted"
            if record.proxies is not None:
                close_descriptors(record.proxies)
            self.ended(None)
        elif record.state is State.WAITING:
            self.attach(handle, record.expires_in_s)
        else:
            self._handle = handle
            self._limit_time()
            if record.kill_at:
                self._kill_later(record.kill_at)
            if record.proxies is not None:
                self.proxies = self._make_sharing_proxies()
                self.proxies.resume(record.proxies, machine_name=_machine_name, inside=inside)
                if inside is not None and self._loopback is not None and self.shares_localhost:
                    self._loopback.resume(self.wrap_id, inside, self._share)

        if self.published is not None and inside is not None:
            self.published.serve(inside, None if self.proxies is None else self.proxies.turns)

    # what the back end tells

    def claimed(self, pid: int) -> None:
        self.state = State.CLAIMED
        self.pid = pid
        self.claimed_at, self._claimed_monotonic = time.time(), time.monotonic()
        if self._expiry is not None:
            self._expiry.cancel()

    def listening(self, listeners: Listeners) -> None:
        if listeners.namespace >= 0:
            os.close(listeners.namespace)
        self._inside = listeners.inside
        self.proxies = self._make_sharing_proxies()
        self.proxies.serve(listeners.http, listeners.socks, listeners.check)
        if listeners.captured:
            self.proxies.capture(listeners.captured, inside=listeners.inside)
        if listeners.inside is not None:
            self.proxies.reach(listeners.inside, _machine_name)
        self.proxies.serve_names(
            listeners.dns_datagram,
            listeners.dns_stream,
            machine_name=_machine_name,
            families={6 if sock.family == socket.AF_INET6 else 4 for sock in listeners.captured},
        )
        if self.published is not None and listeners.inside is not None:
            self.published.serve(listeners.inside, self.proxies.turns)

    def _make_sharing_proxies(self) -> ProxyServer:
        proxies = self._make_proxies(self)
        if self.shares_localhost and self._loopback is not None:
            proxies.elsewhere = self._loopback.around(self.wrap_id)
        return proxies

    def starting(self, inside: SandboxNetwork | None = None) -> Awaitable[None] | None:
        """Check at the start. Raises LaunchError after a change of settings or files."""
        if not self._files_hold() and (path := self._remove_made(self.claimed_at or math.inf)):
            raise LaunchError(
                "mount_misplaced",
                f"{path} was removed while the sandbox was made",
                hint="stop the program that removes it, and try again",
                data={"path": path},
            )
        joining = None
        if inside is not None and self._loopback is not None and self.shares_localhost:
            joining = self._loopback.join(self.wrap_id, inside, self._share)
        looking = self._sockets.look() if self.looks_for_sockets and self._sockets is not None else None
        if joining is None and looking is None:
            return self._settings.check()
        return self._start_after(*(one for one in (joining, looking) if one is not None))

    def _share(self) -> Share:
        return Share() if self.proxies is None else self.proxies.share

    def listens(self) -> None:
        if self._loopback is not None:
            self._loopback.changed(self.wrap_id)

    async def _start_after(self, *before: Awaitable[None]) -> None:
        for one in before:
            await one
        checking = self._settings.check()
        if checking is not None:
            await checking

    async def settled_attribution(self) -> Attribution | None:
        """Wait for the attribution, which is missing right after a restart.

        None where it could not be found out."""
        if self.attributing is not None:
            await asyncio.wait({self.attributing})
        return self.attribution

    async def is_bound(self, file: SocketFile) -> bool:
        """Tell whether a socket of this command is bound to the file.

        Raises OSError where that cannot be told."""
        try:
            return self._inside is not None and await self._inside.is_bound(file)
        except LaunchError:  # it has ended
            return False

    async def _decide_socket(self, attempt: ConnectAttempt) -> Decision:
        assert self._sockets is not None
        return await self._sockets.decide(attempt.address, attempt.file)

    @property
    def has_started(self) -> bool:
        return self._started

    def started(self) -> None:
        self.state = State.RUNNING
        self._started = True
        self._limit_time()
        self._tell(RunStarted(self.wrap_id, self.command_id, self._session_id, self.pid))

    def _limit_time(self) -> None:
        if self._started and self.time_s is not None and self._time_is_up is None:
            left = max(self._claimed_monotonic + self.time_s - time.monotonic(), 0.0)
            self._time_is_up = asyncio.get_running_loop().call_later(min(left, self.time_s), self._end_in_time)

    def _end_in_time(self) -> None:
        if self._handle is not None and self.time_s is not None:
            self.refused(limit_met("time", duration_text(self.time_s), duration_text(2 * self.time_s)))
            self._terminate(LIMIT_GRACE_S)

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self._is_outdated = self._is_outdated or outdated
        self._reason = SETTINGS_CHANGED if self._settings.have_changed else reason

    def refused(self, refusal: DenialEvent) -> None:
        denial = attributed(refusal, self.attribution, self._home, self.generation)
        if denial is not None:
            self._record(denial)

    def lost(self, count: int) -> None:
        self._bound.lost += count
        self._violations.add_lost(count)

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        """Decide on a connect that waits.

        Internet: the way out is opened first, so that the program sees the result. Unix: the policy of this moment
        decides."""
        if attempt.family != socket.AF_UNIX and self.proxies is not None:
            self.proxies.connecting(attempt.address, attempt.port, answer)
        elif attempt.family != socket.AF_UNIX:
            answer(0)
        elif self._connects is not None:
            self._connects.decide(attempt, answer)
        else:
            answer(errno.EACCES)

    def _socket_refused(self, attempt: ConnectAttempt, decision: Decision) -> None:
        self._record(of_socket(attempt, decision, self._home, self._generation_now()))

    def _record(self, denial: DenialEvent) -> None:
        self._violations.add(
            self.command_id,
            replace(denial, command=self.text[:TEXT_KEPT]),
            self._bound,
            lambda: self._is_hidden(self._request.line, denial.operation, denial.target),
        )

    def ended(self, status: int | None) -> None:
        if self.state is State.ENDED:
            return
        if self._expiry is not None:
            self._expiry.cancel()
        for timer in (self._time_is_up, self._killing):
            if timer is not None:
                timer.cancel()
        self.state = State.ENDED
        self._status = status
        if not self._started and self._reason is None:
            self._is_outdated = self.was_prepared or not self._files_hold()
            if self._is_outdated:
                self._remove_made(self.claimed_at or math.inf)
            self._reason = "the sandbox ended before the command started"
        self.unpublish()
        self.ended_at = time.monotonic()
        if self._connects is not None:
            self._connects.close()
        if self._loopback is not None:
            self._loopback.leave(self.wrap_id)
        if self._inside is not None:
            self._inside.close()
        self._ended.set()
        about = self.wrap_id, self.command_id, self._session_id
        self._tell(RunEnded(*about, self._started, self.outcome.status, self._reason))
        self._on_end(self)
        # Some hundred ended commands are kept for their outcome: not with all that they were made from. What knows the
        # rules stays, since guesses and lessons come after the end; commands of one place share it.
        self._handle = self._inside = self.proxies = self._expiry = self._connects = self._sockets = None
        self._check_published = _nothing
        self._files_hold, self._remove_made = lambda: True, lambda since: ""
        self._settings.close()
        self.text = self.text[:TEXT_KEPT]
        self._request = WrapRequest(
            self._request.cwd, self._request.line[:TEXT_KEPT], overrides=self._request.overrides
        )

    # what a session does with it

    def blocked(self, denial: DenialEvent) -> None:
        self._record(replace(denial, home=self._home, generation=self._generation_now()))

    def infer(self, output: str) -> None:
        """Record refused reads that the output suggests, where the system reports none."""
        if self.attribution is None:
            return
        for path in paths_said_to_be_missing(output, self.cwd, self._home):
            decision = self.attribution.decide(path, write=False)
            if decision.reason is Reason.SESSION_TMP and os.path.lexists(path):
                hidden = replace(decision, behavior=Behavior.DENY, text=f"{path} exists outside", hint="")
                self._record(of_output(path, hidden, self._home, self.generation))
        if self._reads_reported:
            return
        known = {violation.target for violation in self._violations.list(self.command_id)}
        for path in paths_said_to_be_denied(output, self.cwd, self._home):
            decision = self.attribution.decide(path, write=False)
            if not decision.allowed and path not in known:
                self._record(of_output(path, decision, self._home, self.generation))

    def closed_at(self, path: str) -> str:
        """Return the path of the rule that denies reading this path, else ""."""
        return "" if self.attribution is None else self.attribution.closed_at(path)

    @property
    def violations_recorded(self) -> int:
        """Return the number of different violations recorded, kept or not."""
        return self._bound.admitted

    @property
    def violations_lost(self) -> int:
        """Return the number of violations over the limit."""
        return self._bound.lost

    @property
    def publications(self) -> tuple[Publication, ...]:
        return () if self.published is None else self.published.publications

    def recheck(self) -> None:
        """Cut connections that a changed policy denies."""
        if self.proxies is not None:
            self.proxies.recheck()
        if self.published is not None:
            try:
                self._check_published()
            except PolicyError:
                self.unpublish()

    def unpublish(self) -> None:
        if self.published is not None:
            self.published.close()
            self.published = None

    @property
    def outcome(self) -> WrapOutcome:
        return WrapOutcome(
            self._started,
            self.state is State.ENDED,
            self._status,
            self._reason,
            self.violations_lost,
            settings_changed=self._settings.have_changed,
            outdated=not self._started and (self._is_outdated or self._settings.have_changed),
        )

    async def settled_outcome(self, wait_s: float = OUTCOME_WAIT_S) -> WrapOutcome:
        """Return the outcome, after a short wait for the end.

        The client sees the process exit before the daemon hears of it."""
        if self.state is State.CLAIMED or self.state is State.RUNNING:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), wait_s)
        return self.outcome

    async def stop(self, grace_s: float, patience_s: float = 1.0) -> None:
        """End the whole tree: TERM now, KILL after `grace_s`. Raises TimeoutError."""
        if self.state is State.WAITING:
            self.expire()
        if self._handle is None or self.state is State.ENDED:
            return
        self._terminate(grace_s)
        await asyncio.wait_for(self._ended.wait(), grace_s + patience_s)

    def _terminate(self, grace_s: float) -> None:
        """Send TERM once, and bring the KILL forward when asked again."""
        kill_at = time.monotonic() + grace_s
        if not self._kill_at and self._handle is not None:
            self._handle.terminate()
        self._kill_later(min(self._kill_at or kill_at, kill_at))

    def _kill_later(self, kill_at: float) -> None:
        if self._killing is not None:
            self._killing.cancel()
        self._kill_at = kill_at
        self._killing = asyncio.get_running_loop().call_later(max(kill_at - time.monotonic(), 0.0), self._kill)

    def _kill(self) -> None:
        """Let process 1 kill its tree and tell the status; kill it too where it does not."""
        if self._handle is not None:
            self._killing = asyncio.get_running_loop().call_later(TELLS_S, self._handle.kill)
            self._handle.terminate()


def _machine_name() -> str:
    """Return the host name of this machine, which a sandbox keeps."""
    return os.uname().nodename


def _nothing() -> None:
    """Do nothing, in place of a check that is no longer possible."""

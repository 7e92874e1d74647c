"""The end of a command, like subprocess.CompletedProcess."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, TypeVar

from sandboxd_client.records import dataclass
from sandboxd_client.running.launching import Launch
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.violations import ViolationRecord
from sandboxd_client.wire.messages.wrap import WrapOutcomeResult, WrapResult

T = TypeVar("T")


class Completed(subprocess.CompletedProcess[T]):
    """The end of a command, like subprocess.CompletedProcess.

    `returncode` is the command's own, 128+N for signal N. `sandboxed` is False only where a decision (`decide=True`) or
    a user (`override`) let the command run bare. `outcome` is the daemon's outcome, or a function that asks for it."""

    def __init__(
        self,
        launch: Launch,
        returncode: int,
        stdout: Any,
        stderr: Any,
        outcome: WrapOutcomeResult | Callable[[], WrapOutcomeResult | None] | None,
    ) -> None:
        super().__init__(launch.args, returncode, stdout, stderr)
        self.wrap: WrapResult | None = launch.wrap
        self.decision: ShouldSandboxResult | None = launch.decision
        self.override: Override | None = None  # with `on_violation="ask"` and violations
        self._outcome = outcome

    @property
    def violations(self) -> tuple[ViolationRecord, ...]:
        """The violations, fetched at the first look or when the client closes."""
        if callable(self._outcome):
            self._outcome = self._outcome()
        return () if self._outcome is None else self._outcome.violations

    @property
    def sandboxed(self) -> bool:
        return self.wrap is not None

    def __repr__(self) -> str:
        parts = [f"args={self.args!r}", f"returncode={self.returncode!r}"]
        parts += [f"{name}={value!r}" for name, value in (("stdout", self.stdout), ("stderr", self.stderr)) if value]
        if not callable(self._outcome) and self.violations:
            parts.append("violations=" + repr([f"{v.operation} {v.target}" for v in self.violations]))
        return f"Completed({', '.join(parts)})"

    def check_returncode(self) -> None:
        """Raise CommandFailed (a CalledProcessError) unless the status is 0."""
        if self.returncode:
            raise CommandFailed(self)


class CommandFailed(subprocess.CalledProcessError):
    """`check=True` and a status other than 0, with the violations."""

    def __init__(self, done: Completed[Any]) -> None:
        super().__init__(done.returncode, done.args, done.stdout, done.stderr)
        self.violations = done.violations

    def __str__(self) -> str:
        text = super().__str__()
        if self.violations:
            first = self.violations[0]
            text += f" The sandbox blocked {len(self.violations)}, first: {first.operation} {first.target}"
        return text


@dataclass(frozen=True, slots=True)
class Override:
    """The answer to the prompt of `on_violation="ask"`."""

    allowed: bool
    text: str  # the answer in a sentence
    by: str | None = None  # the subscriber that answered, `policy` without a prompt, None without an answer
    hint: str = ""
    inside: Completed[Any] | None = None  # the first run, when a second one outside followed

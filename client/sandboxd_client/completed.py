"""The end of a command, like subprocess.CompletedProcess."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.violations import ViolationRecord
from sandboxd_client.wire.messages.wrap import WrapOutcomeResult, WrapResult

if TYPE_CHECKING:
    from sandboxd_client.launching import Launch


class Completed(subprocess.CompletedProcess[Any]):
    """`returncode` is the command's own, 128+N when it died of signal N. `sandboxed` is False only where a decision
    (`decide=True`) or a person (`override`) let the command run bare. `outcome` is what the daemon said, or asks it."""

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
        self.override: Override | None = None
        """With `on_violation="ask"` and something blocked: what became of the question."""
        self._outcome = outcome

    @property
    def violations(self) -> tuple[ViolationRecord, ...]:
        """What was blocked meanwhile. Asked for when it is first looked at, since most never look and the question is a
        good part of what a short command costs; at the latest when the client closes."""
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
        """Raises CommandFailed (a subprocess.CalledProcessError) unless the status is 0."""
        if self.returncode:
            raise CommandFailed(self)


class CommandFailed(subprocess.CalledProcessError):
    """`check=True` and a status other than 0. `violations` often says why."""

    def __init__(self, done: Completed) -> None:
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
    """What became of the question. `by` is who answered, `policy` when nobody was asked, None when nobody answered;
    `text` is the answer in a sentence. `inside` is the run in the sandbox, when another one outside followed."""

    allowed: bool
    text: str
    by: str | None = None
    hint: str = ""
    inside: Completed | None = None

"""Runs one case through one runtime and says how it went."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.cases_of import Case
from matrix.checks import UNENDED, Seen, failed_check
from matrix.place import SECRETS, Listeners, end_all, living
from matrix.runtimes import Runtime, Subject, bare
from support.users import SYSTEM_PATH

SECONDS = 60
"""After this time a run counts as failed and is ended."""
PASS, FAIL, UNSUPPORTED, SKIPPED = "pass", "FAIL", "not supported", "not tried"


@dataclass(frozen=True, slots=True)
class Result:
    """How a case went, with the reason when it did not pass."""

    case: Case
    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs cases for one account."""

    subject: Subject
    listeners: Listeners

    def result(self, case: Case, runtime: Runtime) -> Result:
        """Of one case in one runtime."""
        if lacking := case.needs & runtime.lacks:
            return Result(case, UNSUPPORTED, "cannot be told: " + ", ".join(sorted(lacking)))
        if reason := self._unfit(case):
            return Result(case, SKIPPED, reason)
        said = failed_check(case.checks, self._run(case, runtime))
        return Result(case, FAIL if said else PASS, said or "")

    def control(self, case: Case, runtime: Runtime) -> Result:
        """Whether a case means something here: bare, an attack breaks a check and work breaks none."""
        if reason := self._unfit(case):
            return Result(case, SKIPPED, reason)
        said = failed_check(case.checks, self._run(case, runtime))
        if case.kind == "attack":
            return Result(case, PASS) if said else Result(case, SKIPPED, "the attack does nothing here even bare")
        return Result(case, SKIPPED, f"does not work here even bare: {said}") if said else Result(case, PASS)

    def _unfit(self, case: Case) -> str:
        account = "root" if self.subject.identity.uid == 0 else "user"
        if wrong := case.needs & ({"root", "user"} - {account}):
            return f"is for {', '.join(wrong)}"
        missing = [name for name in case.programs if shutil.which(name, path=SYSTEM_PATH) is None]
        return f"{', '.join(missing)} is not installed" if missing else ""

    def _run(self, case: Case, runtime: Runtime) -> Seen:
        place, identity = self.subject.place, self.subject.identity
        mark = f"mark-{secrets.token_hex(6)}"
        values = place.reset()
        for name, text in case.files.items():
            place.write(name, self._filled(text, mark))
        environment = self.subject.environment(runtime.environment)
        project = place.path("project")
        if case.before:
            self._by_person(case.before, mark, environment)
        before = place.tree()
        self.listeners.forget()
        words = runtime.words(self._filled(case.run, mark))
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = identity.popen(
                words, cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = UNENDED
            seconds = time.monotonic() - started
            stays = self._stays(mark)
            output.seek(0)
            said = output.read().decode(errors="replace")
        end_all(mark)
        if case.then:
            self._by_person(case.then, mark, environment)
        return Seen(
            status, said, before, place.tree(), place.contents, frozenset(self.listeners.reached),
            {name: values[name] for name in SECRETS}, stays, seconds,
        )  # fmt: skip

    def _by_person(self, line: str, mark: str, environment: Mapping[str, str]) -> None:
        """Runs a line outside, in a frame in which the directories of the case and /tmp alone can be written."""
        words = bare(self.subject).words(self._filled(line, mark))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.subject.identity.run(words, cwd=self.subject.place.path("project"), env=environment, timeout=20)

    def _stays(self, mark: str) -> bool:
        """Whether a process with the mark still lives a second after the run."""
        deadline = time.monotonic() + 1
        while living(mark):
            if time.monotonic() > deadline:
                return True
            time.sleep(0.02)
        return False

    def _filled(self, text: str, mark: str) -> str:
        for name, value in self._names(mark).items():
            text = text.replace("{" + name + "}", value)
        return text

    def _names(self, mark: str) -> dict[str, str]:
        place = self.subject.place
        return {
            "home": str(place.path("home")),
            "project": str(place.path("project")),
            "out": str(place.path("out")),
            "base": str(place.base),
            "unix": str(self.listeners.unix),
            "mark": mark,
            "victim": str(self.subject.victim),
            **{name: str(port) for name, port in self.listeners.ports.items()},
            "cases": str(Path(__file__).parent),
        }

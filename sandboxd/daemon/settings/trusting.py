"""Trust in settings files of projects: shown, recorded, removed and prompted.

A record covers exactly the bytes that the user saw. The client sends the digests of what it showed, and the files are
read again and compared."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.policies import Policies, Project
from sandboxd.errors import CallerError, DaemonError
from sandboxd.policy.display import LONGEST, neutralise
from sandboxd.runtime.prompts.grants import Grants, GrantScope
from sandboxd.runtime.prompts.open_prompts import REQUEST_PREFIX, Prompts
from sandboxd.runtime.prompts.prompt_records import Question, QuestionKind, Suggestion
from sandboxd.runtime.session import SandboxSession
from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.reading import read_content, trust_is_allowed, trust_subject
from sandboxd.settings.files.trust import (
    TrustedDirectory,
    TrustedFile,
    TrustStore,
    difference,
    digest,
    real_path,
    remembered,
)
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import first_fatal
from sandboxd.settings.widening import Widening, widening
from sandboxd_client.records import dataclass, field

__all__ = ["TRUST_KEY", "Shown", "ShownFile", "TrustedDirectory", "Trusting"]

TRUST_KEY: Final = "settings.trust"
"""List that the suggestion of a trust prompt names."""
ASKED_IN: Final = "projects"
"""Session id of trust prompts, which outlive the command that caused them."""
_MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class ShownFile:
    """Existing file; `changed` is its difference to the trusted content, if any."""

    path: str
    name: str
    sha256: str
    state: str
    changed: tuple[str, ...] = ()
    content: TrustedFile = field(repr=False, default=TrustedFile("", ""))


@dataclass(frozen=True, slots=True)
class Shown:
    """Settings files of a directory; managed settings make trust `forbidden`."""

    directory: str
    files: tuple[ShownFile, ...]
    widens: tuple[Widening, ...]
    forbidden: bool

    @property
    def digests(self) -> dict[str, str]:
        return {file.path: file.sha256 for file in self.files}


class Trusting:
    """Trust methods and prompts on the records of `policies`."""

    def __init__(self, policies: Policies, log: FilteringBoundLogger) -> None:
        self._policies = policies
        self._store: TrustStore = policies.places.trust
        self._log = log
        self._grants = Grants()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()
        """Held while a worker thread makes a record from the one before."""

    @property
    def is_permitted(self) -> bool:
        """Return whether managed settings permit trust."""
        return trust_is_allowed(self._policies.own.latest.layers)

    def all(self) -> tuple[TrustedDirectory, ...]:
        return self._store.all()

    def show(self, path: str) -> Shown:
        """Return a project's files, or one file. Raises CallerError, SettingsError."""
        files: list[ShownFile] = []
        widens: list[Widening] = []
        locations = self._locations(path)
        for location in locations:
            data = read_content(location)
            if data is None:
                continue
            layer = parse_layer(data, location.source, location.path)
            fatal = first_fatal(layer.problems)
            if fatal is not None:
                raise fatal.as_error()
            widens += widening(layer)
            files.append(self._shown(location, data))
        directory = trust_subject(locations[0])[0]
        return Shown(directory, tuple(files), tuple(widens), not self.is_permitted)

    def _locations(self, path: str) -> tuple[Location, ...]:
        real = real_path(path)
        if os.path.isfile(real):
            for location in self._policies.places.locations(os.path.dirname(os.path.dirname(real))).files:
                if location.in_project and location.path == real:
                    return (location,)
            return (Location(Source.CLI, real, in_project=True),)
        if not os.path.isdir(real):
            raise CallerError(
                "cwd_missing", f"there is no directory {neutralise(path)}", hint="name the directory of a project"
            )
        found = tuple(one for one in self._policies.places.locations(real).files if one.in_project)
        if not found:
            raise CallerError(
                "trust_nothing",
                f"the settings in {neutralise(real)} are your own, and need no trust",
                hint="name the directory of a project",
            )
        return found

    def _shown(self, location: Location, data: bytes) -> ShownFile:
        directory, name = trust_subject(location)
        record = self._store.find(directory)
        before = None if record is None else record.files.get(name)
        content = remembered(data)
        if before is not None and before.sha256 == content.sha256:
            return ShownFile(location.path, name, content.sha256, "trusted", (), content)
        changed = () if before is None else difference(before.text, data)
        state = "untrusted" if record is None else "changed"
        return ShownFile(location.path, name, content.sha256, state, changed, content)

    async def trust(self, path: str, digests: Mapping[str, str]) -> Shown:
        """Record trust in files with these digests. Raises CallerError, SettingsError."""
        async with self._writing:
            directory = await asyncio.to_thread(self._trust, path, digests)
        self._log.info("settings files are trusted", directory=directory, files=list(digests))
        self._policies.reload()
        return await asyncio.to_thread(self.show, path)

    def _trust(self, path: str, digests: Mapping[str, str]) -> str:
        shown = self.show(path)
        self._check_permitted(shown.forbidden)
        if not shown.files:
            raise CallerError(
                "trust_nothing",
                f"there are no settings files in {neutralise(shown.directory)}",
                hint="name a directory with settings files, or one settings file",
            )
        if dict(digests) != shown.digests:
            raise CallerError(
                "trust_changed",
                f"the settings files in {neutralise(shown.directory)} are not what was shown",
                hint=f"run: sandboxd trust {neutralise(path)}",
            )
        self._record(shown.directory, {file.name: file.content for file in shown.files})
        return shown.directory

    @staticmethod
    def _check_permitted(forbidden: bool) -> None:
        if forbidden:
            raise CallerError(
                "trust_forbidden",
                "managed settings do not permit trust in a project (sandbox.allowProjectTrust)",
                hint="ask the administrator",
            )

    def _record(self, directory: str, files: Mapping[str, TrustedFile]) -> None:
        """Record files beside those trusted before, except gone ones of the same kind."""
        before = self._store.find(directory)
        in_project = any(name.startswith(".claude/") for name in files)
        kept = {
            name: file
            for name, file in ({} if before is None else before.files).items()
            if not (in_project and name.startswith(".claude/"))
        }
        self._store.save(TrustedDirectory(directory, {**kept, **files}, time.time()))

    async def remove(self, path: str) -> bool:
        """Remove the trust in a directory, which may be gone. Raises SettingsError."""
        async with self._writing:
            removed = await asyncio.to_thread(self._remove, path)
        if removed:
            self._log.info("settings files are not trusted any more", directory=path)
            self._policies.reload()
        return removed

    def _remove(self, path: str) -> bool:
        real = real_path(path)
        if self._store.remove(real):
            return True
        in_record = self._store.find(os.path.dirname(real)) is not None and not os.path.isdir(real)
        return in_record and self._forget_file(*os.path.split(real))

    def _forget_file(self, directory: str, name: str) -> bool:
        record = self._store.find(directory)
        if record is None or name not in record.files:
            return False
        self._store.save(replace(record, files={key: file for key, file in record.files.items() if key != name}))
        return True

    async def renew(self, project: str, file: str, before: bytes | None, after: bytes) -> bool:
        """Trust what was just written into a project's file for the user.

        The content before must have been trusted, without widening, or absent."""
        async with self._writing:
            return await asyncio.to_thread(self._renew, project, file, before, after)

    def _renew(self, project: str, file: str, before: bytes | None, after: bytes) -> bool:
        shown = next((one for one in self._locations(project) if one.path == file), None)
        if shown is None or not self.is_permitted:
            return False
        directory, name = trust_subject(shown)
        record = self._store.find(directory)
        known = None if record is None else record.files.get(name)
        if before is not None and not (known is not None and known.sha256 == digest(before)):
            layer = parse_layer(before, shown.source, file)
            if layer.broken or widening(layer):
                return False
        files = {**({} if record is None else record.files), name: remembered(after)}
        self._store.save(TrustedDirectory(directory, files, time.time()))
        return True

    # questions

    def notice(self, project: Project, session: SandboxSession, prompts: Prompts) -> None:
        """Prompt once for a changed content. The command does not wait for the answer."""
        directory = project.directory
        if (
            directory is None
            or not project.trust_has_changed
            or not session.spec.asks
            or not prompts.can_ask()
            or directory in self._asking
        ):
            return
        task = asyncio.get_running_loop().create_task(self._ask(directory, prompts), name="trust-question")
        self._asking[directory] = task
        task.add_done_callback(lambda _: self._asking.pop(directory, None))

    async def _ask(self, directory: str, prompts: Prompts) -> None:
        try:
            shown = await asyncio.to_thread(self.show, directory)
            question = None if shown.forbidden or not shown.widens else question_of(shown)
            if question is not None:
                await prompts.ask(ASKED_IN, self._grants, question, f"{REQUEST_PREFIX}{secrets.token_hex(8)}")
        except DaemonError as error:  # reading the settings reports broken and missing files
            self._log.warning("cannot prompt for a changed project", directory=directory, why=error.message)

    def close(self) -> None:
        """Cancel the prompts at the end of the daemon."""
        for task in self._asking.values():
            task.cancel()

    async def answered(self, directory: str, rule: str) -> tuple[str, ...]:
        """Trust exactly the content that an accepted prompt showed. Raises like `trust`."""
        await self.trust(directory, json.loads(rule))
        return ()


def question_of(shown: Shown) -> Question | None:
    """Return the prompt for the changed files of a project.

    The suggestion holds the digests to trust. Returns None where the prompt could not show everything: that takes
    `sandboxd trust`."""
    digests = json.dumps(shown.digests, sort_keys=True)
    lines = [line for file in shown.files for line in file.changed]
    widens = [f"widens {one.key}: {json.dumps(one.value, ensure_ascii=False)} ({one.origin})" for one in shown.widens]
    if len(widens) > _MOST_SHOWN or any(len(one) > LONGEST for one in widens):
        return None
    return Question(
        kind=QuestionKind.TRUST,
        key=(QuestionKind.TRUST, shown.directory, digests),
        subject=neutralise(shown.directory),
        project=shown.directory,
        text=neutralise(f"its settings files are not the ones that were trusted: {' | '.join(lines[:_MOST_SHOWN])}"),
        warnings=tuple(map(neutralise, widens)),
        suggestions=(Suggestion(True, TRUST_KEY, digests),),
        scopes=(GrantScope.ALWAYS,),
        wide=True,
    )

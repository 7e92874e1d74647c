"""A state as version 1 wrote it: a newer daemon takes over from an older one. The file is never renewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxd.app.handover import DaemonRecord
from sandboxd.backends.linux.helper.bridge_protocol import EventDecoder
from sandboxd.backends.linux.helper.launch_configuration import LaunchConfiguration
from sandboxd.backends.linux.helper.launch_records import BridgeRecord, LaunchRecord
from sandboxd.handover.document import READABLE, VERSIONS, read_document
from sandboxd.handover.record import read_record, write_record
from sandboxd.host.placeholders.placeholder_set import PlaceholdersRecord
from sandboxd.plan.filesystem.mounts import Mount, Operation
from sandboxd.plan.host_facts import Territory
from sandboxd.rpc.connection import ConnectionRecord
from sandboxd.runtime.command_record import State
from sandboxd.runtime.prompts.open_prompts import QuestionsRecord
from sandboxd.runtime.session_records import SessionState

FILE = Path(__file__).resolve().parents[1] / "compat" / "handover-1.json"
KINDS: dict[str, type[Any]] = {
    "daemon": DaemonRecord,
    "placeholders": PlaceholdersRecord,
    "bridge": BridgeRecord,
    "launch": LaunchRecord,
    "session": SessionState,
    "questions": QuestionsRecord,
    "connection": ConnectionRecord,
}


def test_every_kind_has_a_version_that_is_read() -> None:
    assert set(KINDS) | {"overlay"} == set(VERSIONS), "version 1 wrote no overlay"
    assert all(VERSIONS[kind] in READABLE[kind] for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_version_1_stays_readable(kind: str) -> None:
    incoming = read_document(FILE.read_bytes())
    written = [part for part in incoming.parts if part.kind == kind]
    assert len(incoming.take(kind, KINDS[kind])) == len(written) > 0
    assert incoming.refused == []


def test_it_means_what_it_meant() -> None:
    incoming = read_document(FILE.read_bytes())
    (session,) = incoming.take("session", SessionState)
    assert (session.spec.name, session.owner, session.spec.detached) == ("mine", "c0", False)
    assert session.settings == {"sandbox": {"network": {"deniedDomains": ["no.test"]}}}
    assert session.grants.denied[0][0][0] == "network"
    assert session.violations.kept[0].violation.target == "no.test:80"
    assert {command.state for command in session.commands} == {State.ENDED, State.RUNNING, State.WAITING}
    (tunnel,) = [one for c in session.commands if c.proxies is not None for one in c.proxies.tunnels]
    assert (tunnel.operation, tunnel.host.name, tunnel.decision.allowed) == ("CONNECT", "ok.test", True)
    (question,) = incoming.take("questions", QuestionsRecord)[0].open
    assert question.asked.question.host == "ask.test"
    (connection,) = incoming.take("connection", ConnectionRecord)
    assert (connection.key, connection.questions, connection.violations) == ("c0", True, (None,))
    launches = incoming.take("launch", LaunchRecord)
    waiting = [launch for launch in launches if launch.link is None]
    assert [LaunchConfiguration.decode(launch.configuration).arguments for launch in waiting] == [(b"true",)]
    for launch in launches:
        if launch.link is not None:
            EventDecoder.resumed(launch.link.decoder_buffer, launch.link.decoder_last)


def test_nothing_in_it_is_of_a_particular_machine() -> None:
    assert "/work" not in FILE.read_text() and json.loads(FILE.read_text())["format"] == 1


def test_names_that_have_changed_since_version_1_are_read() -> None:
    assert [Operation(word) for word in ("shelf", "seal")] == [
        Operation.LISTABLE_DIRECTORY,
        Operation.REMOUNT_READ_ONLY,
    ]
    mask, territory = Mount(Operation.MASK_DIRECTORY, "/x", traverse_only=True), Territory(("/p",), ("/p/x",))
    for record, name in ((mask, "passage"), (territory, "apart")):
        written, _ = write_record(record)
        assert written[name]
        assert read_record(type(record), written, ()) == record

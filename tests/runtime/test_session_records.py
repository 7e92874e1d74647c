"""A session between two daemons."""

from __future__ import annotations

from sandboxd.runtime.command_record import CommandRecord
from sandboxd.runtime.session_records import SessionSpec, SessionState, joined
from sandboxd.runtime.violations.violation_store import ViolationsRecord


def test_a_session_is_joined_with_its_commands() -> None:
    def command(name: str) -> CommandRecord:
        return CommandRecord(wrap_id=name, command_id=name, text="true", cwd="/")

    spec = SessionSpec(cwd="/", detached=True)
    whole = SessionState("s-1", spec, 5.0, violations=ViolationsRecord(total=3))
    first, second = (SessionState("s-1", spec, 5.0, commands=(command(name),)) for name in "ab")
    other = SessionState("s-2", spec, 6.0, commands=(command("c"),))  # its own document was lost
    by_id = {record.session_id: record for record in joined([first, other, whole, second])}
    assert [one.wrap_id for one in by_id["s-1"].commands] == ["a", "b"]
    assert by_id["s-1"].violations.total == 3
    assert by_id["s-2"] == other and len(by_id) == 2

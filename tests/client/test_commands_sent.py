"""What a client tells the daemon of its environment: what is read there, and nothing else."""

from __future__ import annotations

from sandboxd.plan.environment import CALLER_NAMES
from sandboxd_client.running.commands import VARIABLES_READ, sendable


def test_both_sides_name_the_same_variables() -> None:
    assert VARIABLES_READ == CALLER_NAMES


def test_secrets_stay_with_the_client() -> None:
    environment = {"AWS_SECRET_ACCESS_KEY": "x", "GIT_SSH_COMMAND": "ssh -i key", "JAVA_TOOL_OPTIONS": "\udcff"}
    assert sendable(environment) == {"GIT_SSH_COMMAND": "ssh -i key"}

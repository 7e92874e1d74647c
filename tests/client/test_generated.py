"""The blocking client is made from the asynchronous one."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from sandboxd_client import aio, client
from sandboxd_client.running import aio_process, process
from sandboxd_client.transport import aio_connection, sharing
from support.users import CHECKOUT


@pytest.mark.parametrize("generator", ["generate_sync.py", "generate_node.py"])
def test_what_is_generated_is_what_the_source_makes(generator: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "client" / generator), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(f).parameters) for name, f in found if not name.startswith("_")}

    assert methods(aio.AsyncClient) == methods(client.Client)
    assert methods(aio_connection.AsyncConnector) == methods(sharing.SharedConnector)


def test_what_waits_has_the_same_signature_in_both() -> None:
    for name in ("start", "complete", "approved", "check_streams", "ask_to_run_outside"):
        pair = [inspect.signature(getattr(module, name)) for module in (aio_process, process)]
        assert [p.kind for p in pair[0].parameters.values()] == [p.kind for p in pair[1].parameters.values()], name

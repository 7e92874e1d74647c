"""deepagents with its own loop, a model of the tests, and the example."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deepagents.backends.protocol import SandboxBackendProtocol

from examples.frameworks.deep_agent import answer
from integrations.checks import COMMANDS, LONG, OUTSIDE, check, runs, started
from integrations.scripted import Model
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.deepagents import SandboxBackend


def agent() -> None:
    model = Model(calls=[("execute", {"command": command}) for command in COMMANDS])
    assert "kept" in answer(model, "go")
    check(model.results)
    here = Path.cwd()
    model = Model(
        calls=[
            ("write_file", {"file_path": f"{here}/notes.txt", "content": "one\ntwo é\n"}),
            ("edit_file", {"file_path": f"{here}/notes.txt", "old_string": "one", "new_string": "three"}),
            ("read_file", {"file_path": f"{here}/notes.txt"}),
            ("grep", {"pattern": "three", "path": str(here)}),
            ("write_file", {"file_path": str(OUTSIDE), "content": "x"}),
        ]
    )
    answer(model, "go")
    assert (here / "notes.txt").read_text() == "three\ntwo é\n", model.results
    assert "two é" in model.results[2] and "notes.txt" in model.results[3], model.results
    assert not OUTSIDE.exists() and "permission_denied" in model.results[4], model.results


def backend() -> None:
    with Shell(timeout=60) as shell:
        box = SandboxBackend(shell)
        assert isinstance(box, SandboxBackendProtocol) and box.id
        late = box.execute(f"echo begun; setsid {LONG} & wait", timeout=1)
        assert late.exit_code == 124 and "begun" in late.output and "timed out" in late.output and not runs(LONG), late
        big = box.execute("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
        assert big.truncated and "bytes are left out" in big.output and big.output.endswith("xend\n"), len(big.output)
        [up] = box.upload_files([(f"{shell.cwd}/deep/er/it's", b"\xff\0")])
        [missing, down] = box.download_files(["/no/such", f"{shell.cwd}/deep/er/it's"])
        assert (up.error, missing.error, down.content) == (None, "file_not_found", b"\xff\0")

        async def cancelled() -> None:
            task = asyncio.create_task(box.aexecute(f"setsid {LONG} & wait"))
            await started(LONG)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not runs(LONG)

        asyncio.run(cancelled())


agent()
backend()

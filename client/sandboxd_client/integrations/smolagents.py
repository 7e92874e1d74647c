"""smolagents: shell tools, and an executor that runs the code of a CodeAgent in the sandbox."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import Any

from sandboxd_client import subprocess
from sandboxd_client.client import Client
from sandboxd_client.integrations import Shell, extra, functions
from sandboxd_client.running.commands import Path
from sandboxd_client.running.launching import environment_of

with extra("smolagents"):
    from smolagents import AgentLogger, LogLevel, Tool
    from smolagents.local_python_executor import CodeOutput
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentExecutionError

_LONGEST_ANSWER = 16 << 20
_INPUTS = {
    "command": {"type": "string", "description": "the shell command"},
    "command_id": {"type": "string", "description": "the id that shell_start returned"},
    "timeout": {"type": "number", "description": "seconds after which it is ended", "nullable": True},
    "wait": {"type": "number", "description": "seconds to wait for output", "nullable": True},
}
_PROGRAM = r"""
import ast, io, json, os, sys, traceback
answers, most = os.fdopen(os.dup(1), "w"), int(sys.argv[1])
os.dup2(2, 1)
class FinalAnswer(BaseException):
    pass
def final_answer(answer):
    raise FinalAnswer(answer)
names = {"__name__": "__main__", "final_answer": final_answer}
for line in sys.stdin:
    written, answer = io.StringIO(), {}
    sys.stdout = sys.stderr = written
    try:
        tree = ast.parse(json.loads(line))
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last), "<code>", "eval"), names)
        answer["output"] = None if value is None else repr(value)
    except FinalAnswer as final:
        answer["final"] = final.args[0]
    except BaseException:
        answer["error"] = traceback.format_exc()
    text = written.getvalue()
    over = len(text) - most
    if over > 0:
        text = f"{text[:most // 2]}\n[sandboxd: {over} characters are left out here]\n{text[-(most // 2):]}"
    answers.write(json.dumps({**answer, "logs": text}, default=str) + "\n")
    answers.flush()
"""


class ShellTool(Tool):
    """A tool of one of the functions."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, function: Any) -> None:
        self.name = function.__name__
        self.description = function.__doc__.partition("\n")[0]
        self.inputs = {name: _INPUTS[name] for name in function.__annotations__ if name != "return"}
        self._function = function
        super().__init__()

    def forward(self, **given: Any) -> str:
        text: str = self._function(**{name: value for name, value in given.items() if value is not None})
        return text


def shell_tools(shell: Shell) -> list[Tool]:
    """Return the tools shell, shell_start, shell_read and shell_stop."""
    return [ShellTool(function) for function in functions.blocking(shell)]


class SandboxPythonExecutor(RemotePythonExecutor):
    """The `executor` of a CodeAgent: one Python process in the sandbox, which keeps its variables.

    Code beyond the time-out ends with the process and its variables; the next code gets another one."""

    def __init__(self, cwd: Path | None = None, *, timeout: float = 120.0, max_output: int = 30_000) -> None:
        super().__init__([], AgentLogger(level=LogLevel.ERROR))
        self._box = Client(role="agent")
        self._session = self._box.session(cwd, name="smolagents")
        self._limits = timeout, max_output
        self._process: subprocess.Popen | None = None

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code. Raises AgentExecutionError."""
        process: Any = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._started()
        limit, expired = self._limits[0], threading.Event()
        late = threading.Timer(limit, _end, (process, expired))
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(code) + "\n")
                process.stdin.flush()
            line = process.stdout.readline(_LONGEST_ANSWER)
            answer: Any = json.loads(line) if line.endswith("\n") else None
        except BaseException:
            self.cleanup()
            raise
        finally:
            late.cancel()
        if not isinstance(answer, dict):
            self._discard()
            why = f"it was ended after {limit:g} s" if expired.is_set() else "its process ended"
            raise AgentExecutionError(f"no result: {why}; variables are lost{_blocked(process)}", self.logger)
        logs = str(answer.get("logs", ""))
        if "error" in answer:
            raise AgentExecutionError(f"{logs}{answer['error']}{_blocked(process)}", self.logger)
        return CodeOutput(answer.get("final", answer.get("output")), logs, is_final_answer="final" in answer)

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the tools inside, by their source; the process has its own final_answer."""
        super().send_tools({name: tool for name, tool in tools.items() if name != "final_answer"})

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install nothing: the code has the packages of this interpreter."""
        return additional_imports

    def cleanup(self) -> None:
        """End the process and the session."""
        self._discard()
        self._box.close()

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(BrokenPipeError), process:
                pass

    def _started(self) -> subprocess.Popen:
        self._session.__enter__()
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self._limits[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            env=environment_of({"environment": "clean"}),
            cwd=self._session.cwd,
            session=self._session,
        )


def _end(process: Any, expired: threading.Event) -> None:
    expired.set()
    process.kill()


def _blocked(process: Any) -> str:
    lines = "\n".join(f"{one.operation} {one.target}: {one.hint}" for one in process.violations)
    return f"\n<sandbox_violations>\n{lines}\n</sandbox_violations>" if lines else ""

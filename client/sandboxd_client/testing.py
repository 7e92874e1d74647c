"""A fake daemon for tests of programs that use this client.

It sandboxes NOTHING: its `wrap` returns the bare command.

    with FakeDaemon() as daemon, Client(daemon.socket, autostart=False) as box:
        daemon.answer("check", {"ok": False, "steps": [], "layers": []})
        …
        assert daemon.calls[-1].method == "check"

It speaks the protocol over a real socket, with its own threads, and checks parameters as the daemon does."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import TracebackType
from typing import Any, Literal, TextIO, get_args, get_origin, get_type_hints

from sandboxd_client import __version__
from sandboxd_client.errors import RpcError
from sandboxd_client.records import dataclass
from sandboxd_client.transport.activation import LOCK_NAME
from sandboxd_client.wire import codes
from sandboxd_client.wire.framing import FrameError, JsonTextError, LineDecoder, encode_line
from sandboxd_client.wire.jsontext import loads
from sandboxd_client.wire.messages.hello import PROTOCOL
from sandboxd_client.wire.messages.methods import METHODS
from sandboxd_client.wire.params import ParamsError, decode, encode

Answer = Any  # a result (an object or a record of `wire.messages`), an exception, or a function of the parameters


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its method and its raw parameters."""

    method: str
    params: Mapping[str, Any]


class FakeDaemon:
    """A fake daemon as a context manager.

    `socket` is its path (in a private temporary directory by default), `calls` its requests, `argv` the function behind
    `wrap`."""

    def __init__(self, socket_path: str | None = None) -> None:
        self._lock_file: TextIO | None = None
        self._directory = None if socket_path else tempfile.TemporaryDirectory(prefix="sandboxd-fake-")
        self.socket = socket_path or os.path.join(self._directory.name if self._directory else "", "sandboxd.sock")
        self.calls: list[Request] = []
        self.argv: Callable[[Mapping[str, Any]], list[str]] = _bare_argv
        self.layers: tuple[str, ...] = ("fake",)
        self._answers: dict[str, Answer] = {}
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._count = 0
        self._stopping: int | None = None
        self._stopped = threading.Event()

    # for tests

    def answer(self, method: str, answer: Answer) -> None:
        """Answer with a result, an exception to raise, or a function of parameters."""
        self._answers[method] = answer

    def not_started(self, reason: str = "bubblewrap failed", hint: str = "") -> None:
        """Report a failed sandbox for every wrap from now on."""
        self.answer(
            "wrap.outcome",
            {"started": False, "exited": True, "status": None, "reason": reason, "violations": [], "hint": hint},
        )

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification to every connected client."""
        self._broadcast({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a request to every client; `calls` has their answers as `answer`."""
        self._broadcast({"jsonrpc": "2.0", "id": "fake", "method": method, "params": params})

    def disconnect(self) -> None:
        """Close every connection, as a stopped daemon does."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def wait_for_call(self, method: str, timeout: float = 10.0) -> Request:
        """Return the first request of this method. Raises TimeoutError."""

        def found() -> Request | None:
            return next((request for request in self.calls if request.method == method), None)

        with self._arrived:
            request = self._arrived.wait_for(found, timeout)
        if request is None:
            raise TimeoutError(f"no client called {method}")
        return request

    def wait_until_stopped(self) -> None:
        """Wait for a `shutdown` request, as a separate process."""
        self._stopped.wait()

    # life

    def __enter__(self) -> FakeDaemon:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.socket)
        listener.listen(64)
        self._listener = listener
        self._create_lock_file()
        self._thread(self._accept, listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create_lock_file(self) -> None:
        """Create a daemon's lock file: without it this is a service manager."""
        lock = os.path.join(os.path.dirname(self.socket), LOCK_NAME)
        with contextlib.suppress(FileExistsError):
            self._lock_file = open(lock, "x", encoding="ascii")  # noqa: SIM115 (until the end)
            self._lock_file.write(str(os.getpid()))
            self._lock_file.flush()

    def close(self) -> None:
        """Stop listening, close all connections, and remove the socket."""
        if self._listener is None:
            return
        self._stop()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._listener = None
        if self._lock_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._lock_file.name)
            self._lock_file.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            assert self._listener is not None
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.disconnect()
        self._stopped.set()

    def _thread(self, work: Callable[[socket.socket], None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, name="sandboxd-fake", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            self._thread(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        decoder = LineDecoder()
        try:
            while data := connection.recv(65536):
                decoder.feed(data)
                while (line := decoder.next_line()) is not None:
                    reply = self._reply(line)
                    if reply is not None:
                        connection.sendall(encode_line(reply))
                if self._stopping == threading.get_ident():  # another thread would close before the answer
                    self._stop()
        except (OSError, FrameError):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _broadcast(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):  # a closed one stays in the list until its thread ends
                connection.sendall(encode_line(message))

    # dispatch

    def _reply(self, line: str) -> dict[str, Any] | None:
        number = None
        try:
            message = loads(line)
            if not isinstance(message, dict):
                raise RpcError("invalid_request", "not an object")
            number = message.get("id")
            method = message.get("method", "answer")
            params = message.get("params") or {}
            if method == "wrap" and params.get("prepare"):  # between commands, when a program may look at `calls`
                raise RpcError("prepare_unavailable", "there is no sandbox")
            with self._arrived:
                self.calls.append(Request(method, params))
                self._arrived.notify_all()
            if method == "answer" or number is None:
                return None
            return {"jsonrpc": "2.0", "id": number, "result": self._result(method, params)}
        except JsonTextError as error:
            return _error(number, error.slug, error.message, "", {})
        except ParamsError as error:
            return _error(number, error.slug, error.message, error.hint, error.data)
        except RpcError as error:
            return _error(number, error.slug, error.message, error.hint, error.data, error.number)

    def _result(self, method: str, params: Mapping[str, Any]) -> Any:
        if method not in METHODS:
            raise RpcError("method_not_found", f"there is no method {method}")
        decode(METHODS[method].params, params)
        answer = self._answers[method] if method in self._answers else getattr(self, _name(method), None)
        if answer is None:
            return _blank(METHODS[method].result)
        if callable(answer):
            answer = answer(params)
        if isinstance(answer, BaseException):
            raise answer
        return encode(answer) if is_dataclass(answer) else answer

    def _hello(self, params: Mapping[str, Any]) -> Answer:
        return {
            "server": "sandboxd-fake",
            "version": __version__,
            "protocol": PROTOCOL,
            "protocol_oldest": PROTOCOL,
            "pid": os.getpid(),
            "methods": list(METHODS),
            "role": params.get("role") or "full",
        }

    def _status(self, params: Mapping[str, Any]) -> Answer:
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "socket": self.socket,
            "generation": 1,
            "enabled": True,
            "settings": [],
            "sessions": [],
            "layers": list(self.layers),
        }

    def _check(self, params: Mapping[str, Any]) -> Answer:
        return {"ok": True, "steps": [{"name": "fake", "ok": True, "detail": "nothing is enforced"}], "layers": []}

    def _restart(self, params: Mapping[str, Any]) -> Answer:
        return {"pid": os.getpid(), "version": __version__}

    def _shutdown(self, params: Mapping[str, Any]) -> Answer:
        self._stopping = threading.get_ident()
        return {"pid": os.getpid()}

    def _session_open(self, params: Mapping[str, Any]) -> Answer:
        return {"session_id": f"session-{self._next()}", "policy_generation": 1}

    def _session_update(self, params: Mapping[str, Any]) -> Answer:
        return {"policy_generation": 2, "settings": params.get("settings") or {}}

    def _session_join(self, params: Mapping[str, Any]) -> Answer:
        return {"session_id": f"session-of-{params.get('key') or 'agent'}", "opened": False}

    def _command_kill(self, params: Mapping[str, Any]) -> Answer:
        return {"wrap_id": params["command_id"], "status": 143}

    def _should_sandbox(self, params: Mapping[str, Any]) -> Answer:
        reason = {"type": "sandboxed", "text": "commands run in the sandbox"}
        return {"sandboxed": True, "behavior": "allow", "reason": reason}

    def _wrap(self, params: Mapping[str, Any]) -> Answer:
        argv = self.argv(params)
        return {
            "wrap_id": f"wrap-{self._next()}",
            "argv": argv,
            "command": shlex.join(argv),
            "env": {"set": {"SANDBOX_RUNTIME": "1"}, "unset": []},
            "cwd": params["cwd"],
            "layers": list(self.layers),
            "warnings": [],
            "expires_in_s": 60.0,
        }

    def _wrap_outcome(self, params: Mapping[str, Any]) -> Answer:
        return {"started": True, "exited": True, "status": 0, "signal": 0, "reason": None, "violations": []}

    def _sandbox_permission_response(self, params: Mapping[str, Any]) -> Answer:
        return {"behavior": params["behavior"], "scope": params.get("scope", "once"), "warnings": []}

    def _permission_request(self, params: Mapping[str, Any]) -> Answer:
        return {"behavior": "deny", "scope": None, "by": None, "text": "no user was asked: this is a fake daemon"}

    def _permission_revoke(self, params: Mapping[str, Any]) -> Answer:
        return {"subject": "ok.test:443"}

    def _violation_annotate(self, params: Mapping[str, Any]) -> Answer:
        return {"stderr": params["stderr"], "violations": 0}

    def _violation_strip(self, params: Mapping[str, Any]) -> Answer:
        return {"text": params["text"]}

    def _settings_update(self, params: Mapping[str, Any]) -> Answer:
        return {"generation": 2, "file": "/home/user/.claude/settings.local.json", "written": True}

    _settings_exclude_command = _settings_update

    def _settings_trust(self, params: Mapping[str, Any]) -> Answer:
        return {"permitted": True, "directory": params.get("path"), "done": params["action"] in ("trust", "remove")}

    def _settings_lint(self, params: Mapping[str, Any]) -> Answer:
        return {"ok": True, "files": params.get("files") or []}

    def _policy_explain(self, params: Mapping[str, Any]) -> Answer:
        reason = {"type": "readDefault", "text": "nothing forbids it"}
        return {"kind": params["kind"], "subject": params["target"], "behavior": "allow", "reason": reason}

    def _policy_describe(self, params: Mapping[str, Any]) -> Answer:
        return {"generation": 1, "text": "Nothing is enforced.", "facts": {}}

    def _next(self) -> int:
        with self._lock:
            self._count += 1
            return self._count


def _name(method: str) -> str:
    return "_" + method.replace(".", "_")


def _blank(kind: Any) -> Any:
    """Return the emptiest value of a type of the wire, as JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {one.name: _blank(hints[one.name]) for one in fields(kind) if _is_required(one)}
    if origin is Literal:
        return arguments[0]
    if type(None) in arguments:
        return None
    if kind is Any or (origin is not None and issubclass(origin, Mapping)):
        return {}
    return [] if origin is tuple else kind()


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _bare_argv(params: Mapping[str, Any]) -> list[str]:
    if params.get("command") is not None:
        return [params.get("shell") or "/bin/sh", "-c", params["command"]]
    return list(params["argv"])


def _error(number: Any, slug: str, message: str, hint: str, data: Mapping[str, Any], code: int = 0) -> dict[str, Any]:
    details = {**data, "slug": slug, "hint": hint}
    return {
        "jsonrpc": "2.0",
        "id": number,
        "error": {"code": code or codes.number_of(slug, codes.CALLER), "message": message, "data": details},
    }

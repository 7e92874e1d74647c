"""A client that a test drives as another user: one JSON line asks for a call, one answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from typing import Any

from sandboxd_client import Client, RpcError, SandboxdError
from sandboxd_client.running.process import Process

INSIDE = r"""
import json, os, socket, sys
def read(path):
    os.listdir(path) if os.path.isdir(path) else open(path).read()
def append(path, token):
    opened = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(opened, token.encode())
    os.close(opened)
def make(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(path)
def mkdir(path):
    os.mkdir(path)
    os.rmdir(path)
def move(path):
    os.rename(path, path + ".moved")
    os.rename(path + ".moved", path)
def over(path, new):
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        os.rename(new, path)
    except OSError:
        os.unlink(new)
        raise
def connect(way, host, port, token):
    proxy = os.environ["http_proxy"].rpartition("/" * 2)[2].rstrip("/").rpartition(":")
    direct = way == "direct"
    with socket.create_connection((host, port) if direct else (proxy[0], int(proxy[2])), 30) as peer:
        name = f"{host}:{port}"
        if way == "tunnel":
            peer.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            if b" 200 " not in peer.recv(4096):
                raise OSError("refused")
        url = f"http://{name}/{token}" if way == "request" else f"/{token}"
        peer.sendall(f"GET {url} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while more := peer.recv(4096):
            answer += more
    if b"hello from the origin" not in answer:
        raise OSError("refused")
def hold(name):
    proxy = os.environ["http_proxy"].rpartition("/" * 2)[2].rstrip("/").rpartition(":")
    held[0] = socket.create_connection((proxy[0], int(proxy[2])), 30)
    held[0].sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
    if b" 200 " not in held[0].recv(4096):
        raise OSError("refused")
def through(token):
    held[0].sendall(f"GET /{token} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    if not held[0].recv(4096):
        raise EOFError("cut")
held = [None]
print("up", flush=True)
for line in sys.stdin:
    verb, *words = json.loads(line)
    try:
        globals()[verb](*words)
        print("true", flush=True)
    except (OSError, EOFError) as error:
        print(json.dumps(repr(error)), flush=True)
"""
"""What a command does with each line of its standard input: it tries, and says `true` or the error."""


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


class Driver:
    """The verbs beside the methods of the client."""

    def __init__(self) -> None:
        self.box = Client(autostart=False)
        self.commands: dict[str, Process] = {}

    def start(self, name: str, **options: Any) -> str:
        argv = ["python3", "-I", "-S", "-c", INSIDE]
        pipe = subprocess.PIPE
        one = self.box.spawn(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, **options)
        self.commands[name] = one
        assert one.stdout is not None
        line: str = one.stdout.readline()
        return line.strip() if line == "up\n" else line + one.stdout.read()

    def tell(self, name: str, *words: Any) -> Any:
        one = self.commands[name]
        assert one.stdin is not None and one.stdout is not None
        one.stdin.write(json.dumps(words) + "\n")
        one.stdin.flush()
        return json.loads(one.stdout.readline())

    def end(self, name: str, how: str) -> tuple[int, str]:
        """The status of a command that ends by itself, or after a signal for what was spawned, and what it has said."""
        one = self.commands.pop(name)
        assert one.stdin is not None and one.stdout is not None
        if how == "kill":
            one.kill()
        with contextlib.suppress(BrokenPipeError):
            one.stdin.close()
        said = one.stdout.read()
        return one.wait(), said

    def outlast(self, name: str) -> int:
        """The status of a command that is ended by others, after whatever it has said."""
        one = self.commands.pop(name)
        assert one.stdin is not None and one.stdout is not None
        one.stdout.read()
        with contextlib.suppress(BrokenPipeError):
            one.stdin.close()
        return one.wait()

    def answer(self, behavior: str, scope: str) -> str:
        """The person's answer to the next question."""
        for said in self.box.notifications(60):
            if said.method == "sandbox_permission_request":
                self.box.permission_respond(said.params.request_id, behavior, scope=scope)  # type: ignore[arg-type]
                return str(said.params.kind)
        raise AssertionError("no question came")

    def call(self, verb: str, words: list[Any], options: dict[str, Any]) -> Any:
        return getattr(self if hasattr(self, verb) else self.box, verb)(*words, **options)


def main() -> None:
    driver = Driver()
    for line in sys.stdin:
        verb, words, options = json.loads(line)
        try:
            print(json.dumps(["done", plain(driver.call(verb, words, options))]), flush=True)
        except RpcError as error:
            print(json.dumps(["error", error.slug, str(error)]), flush=True)
        except (SandboxdError, OSError, ValueError, AssertionError) as error:
            print(json.dumps(["error", type(error).__name__, str(error)]), flush=True)


if __name__ == "__main__":
    main()

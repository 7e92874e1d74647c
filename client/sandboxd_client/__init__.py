"""Client of sandboxd, the per-user sandbox daemon. Standard library only.

    from sandboxd_client import Client

    with Client() as box:
        done = box.run("npm test", cwd="web", capture_output=True, text=True)
        print(done.returncode, done.stdout, done.violations)

Names are imported at their first use: `sandboxd run` needs few of them, and their imports would cost half of its time.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd_client.aio import AsyncClient, AsyncSession
    from sandboxd_client.client import Client, Session
    from sandboxd_client.errors import (
        ApprovalRequired,
        CommandDenied,
        CommandRefused,
        ConnectionLost,
        DaemonNotRunning,
        DaemonStartFailed,
        DaemonTimeout,
        InvalidCommand,
        PermissionDenied,
        RpcError,
        SandboxdError,
        SandboxOffWarning,
        SandboxSetupError,
        SecretsWarning,
        WrongVersion,
    )
    from sandboxd_client.running.aio_process import AsyncProcess
    from sandboxd_client.running.completed import CommandFailed, Completed, Override
    from sandboxd_client.running.launching import OverridesDict
    from sandboxd_client.running.process import Process
    from sandboxd_client.transport.answers import Notification
    from sandboxd_client.wire.messages.settings import ChangeRecord as Change
    from sandboxd_client.wire.messages.wrap import OverridesRecord as Overrides

_MODULES = {
    "aio": "AsyncClient AsyncSession",
    "running.aio_process": "AsyncProcess",
    "transport.answers": "Notification",
    "client": "Client Session",
    "running.completed": "CommandFailed Completed Override",
    "errors": "ApprovalRequired CommandDenied CommandRefused ConnectionLost DaemonNotRunning DaemonStartFailed "
    "DaemonTimeout InvalidCommand PermissionDenied RpcError SandboxOffWarning SandboxSetupError SandboxdError "
    "SecretsWarning WrongVersion",
    "running.process": "Process",
    "wire.messages.settings": "Change",
    "running.launching": "OverridesDict",
    "wire.messages.wrap": "Overrides",
}
_CLASS_NAMES = {"Change": "ChangeRecord", "Overrides": "OverridesRecord"}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ApprovalRequired",
    "AsyncClient",
    "AsyncProcess",
    "AsyncSession",
    "Change",
    "Client",
    "CommandDenied",
    "CommandFailed",
    "CommandRefused",
    "Completed",
    "ConnectionLost",
    "DaemonNotRunning",
    "DaemonStartFailed",
    "DaemonTimeout",
    "InvalidCommand",
    "Notification",
    "Override",
    "Overrides",
    "OverridesDict",
    "PermissionDenied",
    "Process",
    "RpcError",
    "SandboxOffWarning",
    "SandboxSetupError",
    "SandboxdError",
    "SecretsWarning",
    "Session",
    "WrongVersion",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    value = getattr(module, _CLASS_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

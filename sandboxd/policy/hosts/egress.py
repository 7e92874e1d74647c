"""The routes of a sandbox's connections, in words for `status` and `wrap`.

`httpProxyPort` and `socksProxyPort` hand one of the two listeners of a sandbox to a proxy of the user. A command
chooses the listener, so the gate then protects nothing that the other proxy lets through, and the layer `network-proxy`
is not claimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies, ParentProxy, Protocol
from sandboxd.policy.model import NetworkPolicy

GATE_LAYER: Final = "network-proxy"
USER_PROXY_LAYER: Final = "own-proxy"


def actual_layers(network: NetworkPolicy, layers: Iterable[str]) -> tuple[str, ...]:
    """Return the layers of a back end that this policy leaves in force."""
    if not any(_own_ports(network)):
        return tuple(layers)
    return (*(layer for layer in layers if layer != GATE_LAYER), USER_PROXY_LAYER)


def way_out_warnings(network: NetworkPolicy, environment: EnvironmentProxies = NO_PROXIES) -> tuple[str, ...]:
    """Return warnings on user proxies at listeners, and on unchecked rules."""
    return (*own_proxy_warnings(network), *_unchecked(network, environment))


def _unchecked(network: NetworkPolicy, environment: EnvironmentProxies) -> Iterator[str]:
    if not network.denied_addresses:
        return
    chosen = (network.parent_proxy,) if network.parent_proxy is not None else (environment.plain, environment.other)
    for parent in dict.fromkeys(parent for parent in chosen if parent is not None and parent.takes_names):
        yield (
            f"names that go through {parent} ({parent.place}) are resolved there: what they lead to is not compared"
            " with sandbox.network.deniedResolvedAddresses (a proxy with socks5:// gets addresses that were)"
        )


def own_proxy_warnings(network: NetworkPolicy) -> tuple[str, ...]:
    """Return a warning for each listener that a proxy of the user serves."""
    return tuple(
        f"connections to the {name} go to your own proxy on port {port}, which alone decides on them "
        f"(sandbox.network.{key}): the rules of sandboxd do not count there"
        for name, key, port in _listeners(network)
        if port is not None
    )


def describe_egress(network: NetworkPolicy, environment: EnvironmentProxies) -> tuple[str, ...]:
    """Return lines on the deciding proxy, and the route of allowed connections."""
    lines = []
    if any(_own_ports(network)):
        lines = [
            f"{name}: {'sandboxd decides' if port is None else f'your own proxy on port {port} decides ({key})'}"
            for name, key, port in _listeners(network)
        ]
        lines.append("programs that know no proxy: sandboxd decides")
    if network.parent_proxy is not None:
        lines.append(f"allowed connections go {_through(network.parent_proxy)}")
    else:
        found = {"http:// URLs": environment.plain, "other connections": environment.other}
        lines += [f"allowed {what} go {_through(parent)}" for what, parent in found.items() if parent is not None]
    return (*lines, *_unchecked(network, environment))


def _through(parent: ParentProxy) -> str:
    if parent.protocol is Protocol.DIRECT:
        return f"straight out ({parent.place})"
    if parent.protocol is Protocol.UNUSABLE:
        return f"nowhere: {parent.fault}"
    return f"through {parent} ({parent.place})"


def _listeners(network: NetworkPolicy) -> Iterator[tuple[str, str, int | None]]:
    yield "HTTP proxy", "httpProxyPort", network.http_proxy_port
    yield "SOCKS proxy", "socksProxyPort", network.socks_proxy_port


def _own_ports(network: NetworkPolicy) -> tuple[int | None, int | None]:
    return network.http_proxy_port, network.socks_proxy_port

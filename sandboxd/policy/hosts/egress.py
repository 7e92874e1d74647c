"""Who decides about a sandbox's connections and where they go from here, in words for `status` and `wrap`. Pure.

`httpProxyPort` and `socksProxyPort` hand one of the two listeners of a sandbox to a proxy of the person's own. A
command chooses the listener, so as soon as one of them is handed over, our gate protects nothing that the other proxy
lets through: the layer `network-proxy` is not claimed any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies, ParentProxy, Protocol
from sandboxd.policy.model import NetworkPolicy

OURS: Final = "network-proxy"
THEIRS: Final = "own-proxy"


def actual_layers(network: NetworkPolicy, layers: Iterable[str]) -> tuple[str, ...]:
    """The layers of a back end, as far as this policy leaves them in force."""
    if not any(_own_ports(network)):
        return tuple(layers)
    return (*(layer for layer in layers if layer != OURS), THEIRS)


def way_out_warnings(network: NetworkPolicy, environment: EnvironmentProxies = NO_PROXIES) -> tuple[str, ...]:
    """One sentence for each listener on which somebody else decides, and for a rule that a proxy keeps from being
    looked at."""
    return (*_own_proxy_warnings(network), *_unchecked(network, environment))


def _unchecked(network: NetworkPolicy, environment: EnvironmentProxies) -> Iterator[str]:
    if not network.denied_addresses:
        return
    chosen = (network.parent_proxy,) if network.parent_proxy is not None else (environment.plain, environment.other)
    for parent in dict.fromkeys(parent for parent in chosen if parent is not None and parent.takes_names):
        yield (
            f"names that go through {parent} ({parent.place}) are resolved there: what they lead to is not compared"
            " with sandbox.network.deniedResolvedAddresses (a proxy with socks5:// gets addresses that were)"
        )


def _own_proxy_warnings(network: NetworkPolicy) -> tuple[str, ...]:
    return tuple(
        f"what comes through the {name} goes to your own proxy on port {port}, which alone decides where it leads "
        f"(sandbox.network.{key}): the rules of sandboxd do not count there"
        for name, key, port in _listeners(network)
        if port is not None
    )


def describe_egress(network: NetworkPolicy, environment: EnvironmentProxies) -> tuple[str, ...]:
    """Who decides, and through which proxy allowed connections go."""
    lines = [
        f"{name}: {'sandboxd decides' if port is None else f'your own proxy on port {port} decides ({key})'}"
        for name, key, port in _listeners(network)
    ]
    if any(_own_ports(network)):
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

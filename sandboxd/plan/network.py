"""The network of a sandbox, as planned. Pure.

The gate decides on hosts for each connection, under the policy of that moment."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.policy.model import NetworkPolicy
from sandboxd_client.records import dataclass

USUAL_PORTS = (22, 80, 443)


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """`transparent`: connections that ignore the proxy variables are captured.

    `ports` are likely ports, for hosts where not all can be captured. `local_ports` are ranges, ends included, of
    loopback ports that stand for the host's: sorted, and none touches another."""

    transparent: bool = True
    ports: tuple[int, ...] = USUAL_PORTS
    local_ports: tuple[tuple[int, int], ...] = ()


def network_plan(network: NetworkPolicy) -> NetworkPlan:
    named = {rule.pattern.port for rule in network.allowed if rule.pattern.port is not None}
    return NetworkPlan(
        transparent=network.transparent,
        ports=(*USUAL_PORTS, *sorted(named.difference(USUAL_PORTS))),
        local_ports=_merged([(ports.first, ports.last) for ports in network.allow_local_ports]),
    )


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)

"""What a sandbox's network has to offer to its command. Pure.

Which hosts may be reached is not in here: the gate decides that for each connection, under the policy of that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.policy.policy import NetworkPolicy

USUAL_PORTS = (22, 80, 443)


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """`transparent`: connections of programs that ignore the proxy variables are captured. `ports` are those that
    somebody is likely to connect to, for machines where not all can be captured. `local_ports` are ranges, ends
    included, of loopback ports that stand for the host's."""

    transparent: bool = True
    ports: tuple[int, ...] = USUAL_PORTS
    local_ports: tuple[tuple[int, int], ...] = ()


def network_plan(network: NetworkPolicy) -> NetworkPlan:
    named = {rule.pattern.port for rule in network.allowed if rule.pattern.port is not None}
    return NetworkPlan(
        transparent=network.transparent,
        ports=(*USUAL_PORTS, *sorted(named.difference(USUAL_PORTS))),
        local_ports=tuple(sorted({(ports.first, ports.last) for ports in network.allow_local_ports})),
    )

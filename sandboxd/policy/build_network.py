"""The network part of a Policy: hosts, addresses, ports and sockets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network

from sandboxd.paths import is_below
from sandboxd.policy.build_credentials import CredentialBuilder
from sandboxd.policy.decision import Behavior
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.host_decisions import LOCAL_HOSTS, is_local_name
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.host_rules import compile_rules
from sandboxd.policy.hosts.parent_proxies import ParentProxy, UpstreamError, parse_parent
from sandboxd.policy.hosts.request_rules import RequestRuleError, check_path_pattern, parse_operations
from sandboxd.policy.model import HostRule, NetworkPolicy, PortRange, RequestRule, SocketRule, UploadRule
from sandboxd.policy.paths.rule_paths import expand_rule_path
from sandboxd.policy.settings_reader import BadEntry, SettingsReader
from sandboxd.policy.sockets.control_sockets import canonical_socket_path, control_socket
from sandboxd.policy.sockets.socket_variables import ABSTRACT, named_sockets
from sandboxd.policy.unreachable import unreachable_rules
from sandboxd.settings.layer import Placed
from sandboxd.settings.origins import Origin
from sandboxd.settings.presets import PRIVATE_NETWORKS
from sandboxd.settings.rules import URL_PREFIX
from sandboxd.settings.tools import Feeds, RuleList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd.settings.schema import RequestSection

_N = "sandbox.network."
_WEB = {RuleList.ALLOW: Feeds.ALLOWED_HOST, RuleList.DENY: Feeds.DENIED_HOST, RuleList.ASK: Feeds.ASKED_HOST}
MAX_REASON = 500


class NetworkBuilder:
    """Builder of the network part; problems go to the reader."""

    def __init__(self, reader: SettingsReader) -> None:
        self._reader = reader

    def policy(self) -> NetworkPolicy:
        value = self._reader.value
        web = {
            kind: tuple(self._reader.rules(kind, feeds))
            for kind, feeds in _WEB.items()
            if kind is not RuleList.ALLOW or value(_N + "useWebFetchRules")
        }
        hosts = {kind: tuple(one for one in rules if not is_url(one.value)) for kind, rules in web.items()}
        allowed = (*self._reader.entries(_N + "allowedDomains"), *hosts.get(RuleList.ALLOW, ()))
        denied = (*self._reader.entries(_N + "deniedDomains"), *hosts[RuleList.DENY])
        requests = [*self._reader.entries(_N + "requests")]
        for kind, rules in web.items():
            requests += [Placed(_request_of(one.value, kind), one.origin) for one in rules if is_url(one.value)]
        no_questions = value("permissions.denyInsteadOfPrompting")
        allowed_rules = tuple(self._reader.collect(allowed, self.allowed_host, opens=True))
        denied_rules = tuple(self._reader.collect(denied, self.denied_host, opens=False))
        asked_rules = tuple(self._reader.collect(hosts[RuleList.ASK], self.denied_host, opens=False))
        self._reader.problems += unreachable_rules(allowed_rules, denied_rules)
        sockets = tuple(self._reader.collect(self._reader.entries(_N + "allowUnixSockets"), self.socket, opens=True))
        if value(_N + "allowAllUnixSockets"):
            self._reader.warn(
                "sockets_all_allowed",
                "every Unix socket may be used, so services of this machine can act for the sandbox",
                self._reader.origin(_N + "allowAllUnixSockets"),
                hint="list the sockets that are needed in sandbox.network.allowUnixSockets",
            )
        proxy = self._reader.settings.scalar(_N + "parentProxy")
        builder = CredentialBuilder(self._reader)
        credentials = builder.rules()
        excluded = tuple(self._reader.collect(self._reader.entries(_N + "tls.exclude"), self.denied_host, opens=True))
        for one in credentials:
            if one.pattern.host and (found := compile_rules(excluded).match(one.pattern.host, one.pattern.port)):
                message = (
                    f"{one.pattern.text} gets no credential: {found.pattern.text} in {found.origin} keeps its TLS whole"
                )
                self._reader.warn("credential_excluded", message, one.origin, hint="take one of the two out")
        terminated = self._reader.collect(self._reader.entries(_N + "tls.terminate"), self.denied_host, opens=False)
        return NetworkPolicy(
            allowed=allowed_rules,
            denied=(*denied_rules, *asked_rules) if no_questions else denied_rules,
            asked=() if no_questions else asked_rules,
            denied_reasons=tuple(
                self._reader.collect(self._reader.entries(_N + "deniedDomainReasons"), self.denied_reason, opens=True)
            ),
            requests=tuple(self.requests(requests, asks=not no_questions)),
            tls_terminate=(*terminated, *(HostRule(one.pattern, one.origin) for one in credentials)),
            tls_exclude=excluded,
            credentials=credentials,
            masks=builder.masks(),
            uploads=tuple(self._reader.collect(self._reader.entries(_N + "maxUpload"), self.upload, opens=False)),
            max_new_names=value(_N + "maxNewNames"),
            strict_allowlist=no_questions
            or value(_N + "strictAllowlist")
            or value(_N + "onUnlisted") == "deny"
            or value(_N + "allowManagedDomainsOnly"),  # a user cannot grant what only managed settings may allow
            managed_domains_only=value(_N + "allowManagedDomainsOnly"),
            denied_addresses=tuple(
                self._reader.collect(self._reader.entries(_N + "deniedResolvedAddresses"), _network, opens=False)
            ),
            private_networks=any(one.value == PRIVATE_NETWORKS for one in self._reader.entries("sandbox.presets")),
            allow_unix_sockets=sockets,
            allow_all_unix_sockets=value(_N + "allowAllUnixSockets"),
            control_sockets=tuple(
                canonical_socket_path(path)
                for _, path in named_sockets(self._reader.scope.environment)
                if path != ABSTRACT
            ),
            allow_local_binding=value(_N + "allowLocalBinding"),
            allow_local_ports=(
                *self._reader.collect(self._reader.entries(_N + "allowLocalPorts"), _ports, opens=True),
                *filter(None, map(local_ports, allowed_rules)),
            ),
            allow_mach_lookup=self._reader.texts(_N + "allowMachLookup"),
            allow_mach_register=self._reader.texts(_N + "allowMachRegister"),
            http_proxy_port=value(_N + "httpProxyPort"),
            socks_proxy_port=value(_N + "socksProxyPort"),
            parent_proxy=next(self._reader.collect((proxy,), _proxy, opens=False), None) if proxy.value else None,
            transparent=value(_N + "transparent"),
            check_server_name=value(_N + "checkServerName"),
        )

    def allowed_host(self, text: str, origin: Origin) -> HostRule:
        pattern = HostPattern.parse(text)
        if pattern.is_broad:
            message = f"{text!r} allows hosts of unrelated owners" if pattern.host else f"{text!r} allows every host"
            self._reader.warn("host_pattern_broad", message, origin, hint="list the hosts that are needed")
        if pattern.host is not None and is_local_name(pattern.host) and local_ports(HostRule(pattern, origin)) is None:
            message = f"{text!r} opens no port of this machine: inside, it is the sandbox's own loopback"
            hint = "write localhost:PORT for a port of this machine"
            self._reader.warn("host_pattern_local", message, origin, hint=hint)
        return HostRule(pattern, origin)

    def denied_host(self, text: str, origin: Origin) -> HostRule:
        return HostRule(HostPattern.parse(text, public_suffix=True), origin)

    def denied_reason(self, pair: tuple[str, str], origin: Origin) -> tuple[HostPattern, str]:
        return HostPattern.parse(pair[0], public_suffix=True), neutralise(pair[1], MAX_REASON)

    def upload(self, limit: tuple[str, int], origin: Origin) -> UploadRule:
        return UploadRule(HostPattern.parse(limit[0], public_suffix=True), limit[1], origin)

    def requests(self, entries: Sequence[Placed], *, asks: bool) -> Iterator[RequestRule]:
        for entry in entries:
            opens = entry.value.action == "allow"
            for rule in self._reader.collect((entry,), self.request, opens=opens):
                without_question = rule.behavior is Behavior.ASK and not asks
                yield replace(rule, behavior=Behavior.DENY) if without_question else rule

    def request(self, section: RequestSection, origin: Origin) -> RequestRule:
        behavior = Behavior(section.action)
        pattern = HostPattern.parse(section.host, public_suffix=behavior is Behavior.DENY)
        paths = section.paths or ()
        try:
            operations = parse_operations(section.methods or ())
            for path in paths:
                check_path_pattern(path)
        except RequestRuleError as fault:
            raise BadEntry("request_rule_invalid", fault.message, fault.hint) from None
        reason = neutralise(section.reason or "", MAX_REASON)
        return RequestRule(pattern, behavior, origin, str(section), operations, paths, reason)

    def socket(self, text: str, origin: Origin) -> SocketRule:
        expanded = expand_rule_path(text, self._reader.scope_that_opens(text, origin))
        if expanded.glob:
            raise BadEntry(
                "socket_glob", f"{text!r} is a pattern, and sockets are listed one by one", "or name their directory"
            )
        path = canonical_socket_path(expanded.path)
        for own in self._reader.scope.own_paths:
            if is_below(path, own):
                raise BadEntry("socket_own", f"{text!r} belongs to sandboxd itself and cannot be allowed")
        gives = control_socket(path, self._reader.scope.environment)
        if gives is not None:
            message = f"{text!r} {gives}: a command that uses it is not confined any more"
            self._reader.warn("socket_dangerous", message, origin)
        return SocketRule(path, origin)


_URL = re.compile(rf"{URL_PREFIX}(https?)://([^/?#]+)(/[^?#]*)")


def is_url(text: str) -> bool:
    """Return whether the content of a rule for WebFetch is a URL, not a host."""
    return text.startswith(URL_PREFIX)


def _request_of(url: str, kind: RuleList) -> RequestSection:
    """Return the rule for requests that a URL with a path stands for."""
    match = _URL.fullmatch(url)
    assert match is not None, "checked by is_url"
    scheme, authority, path = match.groups()
    has_port = re.search(r":[0-9]+$", authority) is not None
    host = authority if has_port else f"{authority}:{443 if scheme == 'https' else 80}"
    from sandboxd.settings.schema import RequestSection

    return RequestSection.model_validate({"host": host, "paths": (path,), "action": kind.value})


def local_ports(rule: HostRule) -> PortRange | None:
    """Return the ports of this machine's loopback that a rule opens: those that name it, no wildcard."""
    pattern = rule.pattern
    if pattern.host is None or not pattern.apex or pattern.below or pattern.host.name not in LOCAL_HOSTS:
        return None
    return PortRange(pattern.port or 1, pattern.port or 65535, rule.origin, pattern.text)


def _network(text: str, _: Origin) -> str:
    try:
        return str(ip_network(text.strip(), strict=False))
    except ValueError:
        raise BadEntry("network_invalid", f"{text!r} is not a network", "write 10.0.0.0/8 or fd00::/8") from None


def _ports(value: int | str, origin: Origin) -> PortRange:
    first, _, last = str(value).partition("-")
    ports = PortRange(int(first), int(last or first), origin)
    if not 1 <= ports.first <= ports.last <= 65535:
        raise BadEntry("port_range_invalid", f"{value!r} is not a range of ports", "write 8000-8010")
    return ports


def _proxy(text: str, origin: Origin) -> ParentProxy:
    try:
        return parse_parent(text, origin.key)
    except UpstreamError as error:
        raise BadEntry("proxy_invalid", error.message, error.hint) from None

"""The plan: everything about one command's sandbox, as a value that runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from sandboxd.errors import PolicyError
from sandboxd.plan.command import command_argv
from sandboxd.plan.environment import EnvironmentChange, change_environment
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.filesystem.mounts import FileView, Visibility, arrange, settled_at
from sandboxd.plan.filesystem.path_entries import TMP, add_trust, make_path_table
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.filesystem.socket_entries import add_sockets
from sandboxd.plan.host_facts import Facts, PathKind, session_directory
from sandboxd.plan.host_queries import files_in
from sandboxd.plan.masked_files import add_masked_files
from sandboxd.plan.network import NetworkPlan, network_plan
from sandboxd.plan.request import DEFAULT_SHELLS, Argv, Place, ShellText
from sandboxd.plan.trust import bundle_path, terminated_hosts, trust_variables
from sandboxd.policy.model import NO_LIMITS, FilePolicy, Limits, Missing, PathRule, Policy
from sandboxd.policy.sockets.socket_decisions import OpenSockets
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass, field

LAYERS = ("filesystem", "namespaces")
MOST_MOUNTS = 50_000
"""Half of what the kernel allows a mount namespace (fs.mount-max), which also holds the mounts of the host."""
MOST_ZONES = 4096
"""The mounts that the helper knows (guard.c)."""
MOST_WARNINGS = 50
_WORTH_NAMING = 500
"""The number of path entries above which their largest rule is named."""


class UnixSockets(StrEnum):
    """The Unix sockets that a command can connect to."""

    NONE = "none"
    """Connected pairs alone, where no decision can be made."""
    LISTED = "listed"
    """Sockets that were bound in the session, and listed ones."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The system calls of a command that the daemon sees as they happen.

    `writes`, `reads`: those that mounts refuse are reported. `connects`: the gate decides on each TCP connection first,
    so that connect(2) succeeds only when the far end has answered. `removals`: removing a placeholder does nothing.
    `guard`: names are made by the helper, and some not at all. `refuses_owners`: chown of root to an id that does not
    exist inside fails, instead of succeeding without effect."""

    writes: bool = False
    reads: bool = False
    connects: bool = False
    unix_sockets: UnixSockets = UnixSockets.NONE
    removals: bool = False
    guard: bool = False
    refuses_owners: bool = False


@dataclass(frozen=True, slots=True)
class ProcessLimit:
    """The limit of processes and threads; `wanted_by` is empty for the default.

    Where it is not `counted` by the kernel, a command beyond it is ended."""

    most: int
    wanted_by: str = ""
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one command; `layers` are those of mounts and namespaces."""

    view: FileView
    environment: EnvironmentChange
    cwd: str
    argv: tuple[str, ...]
    layers: tuple[str, ...] = LAYERS
    warnings: tuple[str, ...] = ()
    supervision: Supervision = Supervision()
    attribution: Attribution | None = None
    """The rules behind refusals; None without a planned view."""
    network: NetworkPlan = field(default_factory=NetworkPlan)
    removed_variables: tuple[str, ...] = ()
    """Patterns of variables that are removed last, whatever sets them."""
    processes: ProcessLimit | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """The part of a plan that serves every command of a place under one policy."""

    view: FileView
    cwd: str
    shells: tuple[tuple[str, str], ...]
    """(name, canonical path) of the shells that exist and can be seen."""
    session_tmp: str
    warnings: tuple[str, ...]
    entries: PathTable
    attribution: Attribution
    supervision: Supervision = Supervision()
    network: NetworkPlan = field(default_factory=NetworkPlan)
    sockets: OpenSockets | None = None
    """The open sockets; None leaves variables that name sockets."""
    removed_variables: tuple[str, ...] = ()
    processes: ProcessLimit | None = None
    limits: Limits = NO_LIMITS
    trusted: tuple[str, ...] = ()
    """Patterns of hosts for which TLS ends in the proxy."""


def _without_unseen(files: FilePolicy, facts: Facts) -> FilePolicy:
    """Drop directories of presets that could not be searched for denied names."""
    if not facts.unseen:
        return files
    opened = (rule for rule in files.allow_write if rule.missing is Missing.TELL or rule.path not in facts.unseen)
    return replace(files, allow_write=tuple(opened))


def _denials(files: FilePolicy) -> tuple[PathRule, ...]:
    return (*files.deny_write, *files.deny_read)


def make_layout(
    policy: Policy,
    place: Place,
    facts: Facts,
    shells: tuple[str, ...] = DEFAULT_SHELLS,
    *,
    guards: bool = False,
) -> Layout:
    """Make the layout. Raises `PolicyError` for a policy that cannot be enforced.

    `guards`: the back end can keep names absent without placeholders."""
    files = files_in(policy.files, place)
    table = make_path_table(_without_unseen(files, facts), place, facts, guards=guards)
    for path, why in facts.unseen.items():
        patterns = ", ".join(dict.fromkeys(rule.text for rule in _denials(files) if rule.bounded == path))
        table.warn(
            f"{path} is not opened: {why}, so matches of {patterns} could be missed; to open it, begin the pattern in "
            "a directory (./**/NAME), or add the directory to allowWrite"
        )
    cwd = facts.paths[place.cwd].real
    _require_visible_cwd(table, place, cwd)
    busiest = _busiest(table) if len(table.entries) > _WORTH_NAMING else ""
    sockets = add_sockets(table, policy.network, place, facts)
    trusted = terminated_hosts(policy.network)
    if trusted:
        add_trust(table, place, facts, bundle_path(place.trust_directory, trusted))
    add_masked_files(table, policy.network, place, facts)
    view = arrange(table.entries, place.mask_file, watched=tuple(table.watched), mounted=facts.mount_aliases.mounted)
    if len(view.zones) > MOST_ZONES:
        return make_layout(policy, place, facts, shells)
    tmp = facts.paths[TMP].real
    unbound = _unbound(table, tmp) if "tmp-entries" in table.layers else None
    view = replace(
        view, busiest=busiest, facts=facts, layers=tuple(table.layers), tmp_size=table.tmp_size, unbound=unbound
    )
    if len(view.mounts) > MOST_MOUNTS:
        raise PolicyError(
            "mounts_too_many",
            f"these rules need {len(view.mounts):,} mounts, of {MOST_MOUNTS:,} that are possible; "
            f"most come from {busiest}",
            hint="name a directory above the paths instead of each path",
            data={"mounts": len(view.mounts), "rule": busiest},
        )
    visible = []
    for shell in shells:
        resolved = facts.paths[shell]
        if (
            resolved.kind is PathKind.FILE
            and settled_at(table.entries, resolved.real)[-1].shows is not Visibility.NOTHING
        ):
            visible.append((shell, resolved.real))
    warnings = _first_of(tuple(table.warnings))
    return Layout(
        view,
        cwd,
        tuple(visible),
        session_directory(place, facts),
        warnings,
        table,
        Attribution(table),
        supervise(policy, place, bool(view.placeholders), guard=bool(view.guards)),
        network_plan(policy.network),
        sockets,
        policy.environment_remove,
        limit_processes(policy),
        policy.limits,
        trusted,
    )


def _unbound(table: PathTable, tmp: str) -> frozenset[str]:
    """Name the entries of `/tmp` that rules or mounts reach into."""
    return frozenset(path[len(tmp) + 1 :].split("/")[0] for path in table.entries if path.startswith(f"{tmp}/"))


def limit_processes(policy: Policy) -> ProcessLimit:
    origin = policy.max_processes_origin
    return ProcessLimit(policy.max_processes, "" if origin.source is Source.DEFAULT else str(origin))


def supervise(policy: Policy, place: Place, keeps_absent: bool = False, *, guard: bool = False) -> Supervision:
    """Choose the supervised system calls.

    Supervised reads slow each open(2), so they need a denial of reads and a user who wants the reports.
    `keeps_absent`: there are placeholders. `guard`: there are names without."""
    return Supervision(
        writes=policy.report_violations != "off",
        reads=policy.report_violations == "all" and bool(policy.files.deny_read),
        connects=place.captured,
        unix_sockets=UnixSockets.ALL if policy.network.allow_all_unix_sockets else UnixSockets.LISTED,
        removals=keeps_absent,
        guard=guard,
        refuses_owners=policy.files.owners == "refuse",
    )


def environment_in(layout: Layout, place: Place, environment: Mapping[str, str]) -> EnvironmentChange:
    """Return the change for commands in a layout; of the caller's `environment` CALLER_NAMES count."""
    change = change_environment(place, layout.session_tmp, environment, layout.sockets)
    if layout.trusted:
        java = change.set.get("JAVA_TOOL_OPTIONS", environment.get("JAVA_TOOL_OPTIONS", ""))
        variables = trust_variables(place.trust_directory, layout.trusted, environment, java)
        change = replace(change, set={**change.set, **variables})
    return change


def plan_in(layout: Layout, change: EnvironmentChange, command: Argv | ShellText) -> Plan:
    """Plan one command in a layout. Raises `CallerError` for an impossible command."""
    argv = command_argv(command, layout.shells)
    if isinstance(command, ShellText) and argv[0].startswith("/"):
        change = replace(change, set={**change.set, "SHELL": argv[0]})
    return Plan(
        view=layout.view,
        environment=change,
        cwd=layout.cwd,
        argv=argv,
        layers=(*LAYERS, *layout.view.layers),
        warnings=layout.warnings,
        supervision=layout.supervision,
        attribution=layout.attribution,
        network=layout.network,
        removed_variables=layout.removed_variables,
        processes=layout.processes,
        limits=layout.limits,
    )


def shells_of(command: Argv | ShellText) -> tuple[str, ...]:
    if isinstance(command, ShellText) and command.shell is not None:
        return (command.shell,) if command.shell.startswith("/") else ()
    return DEFAULT_SHELLS


def _first_of(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Limit the warnings, which accompany every command."""
    more = len(warnings) - MOST_WARNINGS
    return (*warnings[:MOST_WARNINGS], f"and {more:,} more warnings about paths") if more > 0 else warnings


def _busiest(table: PathTable) -> str:
    """Name the rule with the most paths, or the list whose entries have more together."""
    every = [reason for reasons in table.reasons.values() for reason in reasons]
    rule, paths = Counter(reason.text for reason in every).most_common(1)[0]
    lists = Counter((one.rule.origin.key, one.rule.origin.file) for one in every if one.rule is not None)
    for (key, file), together in lists.most_common(1):
        if together > 2 * paths:
            return f"the entries of {key}" + (f" in {file}" if file else "")
    return rule


def _require_visible_cwd(table: PathTable, place: Place, cwd: str) -> None:
    end = settled_at(table.entries, cwd)[-1]
    if end.shows is not Visibility.NOTHING:
        return
    if end.entry.shows is Visibility.NOTHING:
        raise PolicyError(
            "cwd_denied",
            f"the working directory {place.cwd} lies in {end.entry.path}, which belongs to the daemon",
            hint="start the command elsewhere; no rule opens that directory",
            data={"path": place.cwd},
        )
    reasons = table.reasons.get(end.entry.path, [])
    rule = next((reason.rule for reason in reasons if reason.rule is not None), None)
    because = f" by {rule.text or rule.path} in {rule.origin}" if rule is not None else ""
    raise PolicyError(
        "cwd_denied",
        f"reading the working directory {place.cwd} is denied{because}",
        hint=f"start the command elsewhere{', or remove that rule' if rule is not None else ''}",
        data={"path": place.cwd},
    )

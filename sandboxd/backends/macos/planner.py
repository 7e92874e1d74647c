"""Plans for macOS: host queries, and a profile instead of mounts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from sandboxd.backends.macos.environment import private_name
from sandboxd.backends.macos.seatbelt.file_rules import list_file_rules, private_rules
from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from sandboxd.backends.macos.seatbelt.profile import Profile, make_profile
from sandboxd.backends.macos.seatbelt.rule_files import read_rule_file
from sandboxd.backends.macos.seatbelt.seatbelt_entries import list_patterns, make_seatbelt_points
from sandboxd.errors import PolicyError
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.filesystem.mounts import FileView, Visibility, settle, settled_at
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import Facts, FactSource, PathKind, session_directory
from sandboxd.plan.host_queries import HostQueries, files_in, list_needs
from sandboxd.plan.plan import Layout, Plan, environment_in, plan_in, shells_of
from sandboxd.plan.planner import Planner
from sandboxd.plan.request import DEFAULT_SHELLS, NO_VARIABLES, Argv, Place, ShellText
from sandboxd.policy.model import Policy
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass

LAYERS = ("seatbelt",)
_NOTHING = Profile("")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SeatbeltView(FileView):
    """The file system of a sandbox as a profile, without mounts."""

    profile: Profile = _NOTHING


@dataclass(frozen=True, slots=True)
class SeatbeltPlan(Plan):
    """A plan that the back end completes with the proxies' ports."""

    profile: Profile = _NOTHING
    place: Place | None = None
    session_tmp: str = ""
    caller: Mapping[str, str] | None = None
    policy: Policy | None = None


def list_seatbelt_needs(policy: Policy, place: Place, shells: tuple[str, ...] = DEFAULT_SHELLS) -> HostQueries:
    """List the queries of Linux, and the real paths of sockets.

    Patterns are expressions, also in caches."""
    needs = list_needs(policy, place, shells)
    sockets = [real_spelling(rule.path) for rule in policy.network.allow_unix_sockets]
    return replace(needs, paths=tuple(dict.fromkeys([*needs.paths, *sockets])), bounded=())


def make_seatbelt_layout(
    policy: Policy,
    place: Place,
    facts: Facts,
    shells: tuple[str, ...] = DEFAULT_SHELLS,
    read_file: Callable[[str], str] = read_rule_file,
    user_directories: tuple[str, ...] = (),
) -> Layout:
    """Make the layout; `user_directories` are those of confstr(3).

    Raises `PolicyError` for a policy that cannot be enforced."""
    files = files_in(policy.files, place)
    patterns = list_patterns(files, place, facts)
    found = make_seatbelt_points(files, place, facts, patterns)
    explained = make_seatbelt_points(files, place, facts, patterns, matches=True) if patterns else found
    _require_readable_cwd(found, place, facts)
    private = private_rules(user_directories, private_name(place))
    rules = list_file_rules(files, place, facts, found, patterns, private)

    def real(path: str) -> str:
        resolved = facts.paths.get(real_spelling(path))
        return resolved.real if resolved is not None else real_spelling(path)

    runtime = facts.paths[place.runtime_dir].real
    profile = make_profile(
        rules, policy.network, policy.platform, read_file=read_file, closed_sockets=(runtime,), real=real
    )
    visible = tuple(
        (shell, facts.paths[shell].real)
        for shell in shells
        if facts.paths[shell].kind is PathKind.FILE and _is_readable(found, facts.paths[shell].real)
    )
    return Layout(
        view=SeatbeltView(mounts=(), profile=profile, writable=_writable(found)),
        cwd=facts.paths[place.cwd].real,
        shells=visible,
        session_tmp=session_directory(place, facts),
        warnings=(*found.warnings, *_warnings(policy)),
        entries=explained,
        removed_variables=policy.environment_remove,
        attribution=Attribution(explained),
    )


class SeatbeltPlanner(Planner):
    """The planner for macOS."""

    def __init__(self, facts: FactSource, user_directories: tuple[str, ...] = ()) -> None:
        make = partial(make_seatbelt_layout, user_directories=user_directories)
        super().__init__(facts, needs=list_seatbelt_needs, make=make)

    async def plan(
        self, policy: Policy, place: Place, command: Argv | ShellText, environment: Mapping[str, str] = NO_VARIABLES
    ) -> SeatbeltPlan:
        layout = await self.layout(policy, place, shells_of(command))
        assert isinstance(layout.view, SeatbeltView)
        plan = plan_in(layout, environment_in(layout, place, environment), command)
        return SeatbeltPlan(
            view=plan.view,
            environment=plan.environment,
            cwd=plan.cwd,
            argv=plan.argv,
            layers=LAYERS,
            warnings=plan.warnings,
            attribution=plan.attribution,
            removed_variables=plan.removed_variables,
            profile=layout.view.profile,
            place=place,
            session_tmp=layout.session_tmp,
            caller=environment,
            policy=policy,
        )


def _is_readable(found: PathTable, path: str) -> bool:
    return settled_at(found.entries, path)[-1].shows is not Visibility.NOTHING


def _require_readable_cwd(found: PathTable, place: Place, facts: Facts) -> None:
    end = settled_at(found.entries, facts.paths[place.cwd].real)[-1]
    if end.shows is not Visibility.NOTHING:
        return
    reasons = found.reasons.get(end.entry.path, [])
    rule = next((reason.rule for reason in reasons if reason.rule is not None), None)
    because = f" by {rule.text or rule.path} in {rule.origin}" if rule is not None else ""
    raise PolicyError(
        "cwd_denied",
        f"reading the working directory {place.cwd} is denied{because}",
        hint="start the command in another directory, or add this one to filesystem.allowRead",
        data={"path": place.cwd},
    )


def _writable(found: PathTable) -> tuple[str, ...]:
    return tuple(
        node.entry.path
        for node in settle(found.entries)
        if node.shows is Visibility.HOST_WRITABLE
        and (node.parent is None or node.parent.shows is not Visibility.HOST_WRITABLE)
    )


def _warnings(policy: Policy) -> tuple[str, ...]:
    found: list[str] = []
    if policy.network.allow_local_binding:
        found.append(
            "allowLocalBinding: on macOS the command can also connect to every port of this machine's loopback, "
            "because Seatbelt cannot tell the command's own servers from others"
        )
    if policy.max_processes_origin.source is not Source.DEFAULT:
        found.append(
            "limits.processes: macOS counts all processes of the user together, so those of the command are not "
            f"limited ({policy.max_processes_origin})"
        )
    found += [
        f"limits.{name}: macOS has no such limit for a command"
        for name, value in (("memory", policy.limits.memory), ("cpu", policy.limits.cpu))
        if value is not None
    ]
    return tuple(found)

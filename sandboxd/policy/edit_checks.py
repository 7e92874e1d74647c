"""Checks of a change of settings: its entry, and its effect on other rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandboxd.errors import CallerError
from sandboxd.policy.build import RUNS_ANYTHING, evaluate
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.policy.wide_grants import GrantContext, wide_grants
from sandboxd.settings.edits import Act, Change, check_change
from sandboxd.settings.layer import Layer, layer_from_values
from sandboxd.settings.merge import Settings, merge
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Severity


def wide_changes(change: Change, scope: PathScope, real_path: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return a sentence for each rule of a change that has to be confirmed."""
    if change.act in (Act.UNSET, Act.REMOVE):
        return ()
    layer = _layer_of(change)
    policy, _ = evaluate(merge([layer]), scope)
    return wide_grants(policy, frozenset(layer.values), GrantContext(scope, real_path))


def _layer_of(change: Change) -> Layer:
    nested: Any = [change.value] if change.act is Act.ADD else change.value
    for step in reversed(change.path):
        nested = {step: nested}
    return layer_from_values(nested, Source.LOCAL)


def check_rule_change(settings: Settings, change: Change, scope: PathScope) -> tuple[str, ...]:
    """Refuse a change that cannot take effect; return warnings about one that can.

    Raises `CallerError`. Warnings are about rules that are dangerous, or that another rule makes pointless."""
    check_change(settings, change)
    if change.act in (Act.UNSET, Act.REMOVE):
        return ()
    layer = _layer_of(change)
    _, alone = evaluate(merge([layer]), scope)
    for problem in alone:
        if problem.slug == RUNS_ANYTHING:
            continue  # `wide_changes` reports it
        if problem.severity is Severity.ERROR or problem.slug == "path_variable_unset":
            raise CallerError(problem.slug, problem.message, hint=problem.hint, data={"key": change.key})
    _, together = evaluate(merge([*settings.layers, layer]), scope)
    return tuple(
        problem.message
        for problem in together
        if problem.origin.file is None and (problem.severity is Severity.WARNING or problem.slug == RUNS_ANYTHING)
    )

"""The tables of docs/settings.md that come from the code: `python docs/settings_tables.py` writes them anew.

A test calls `render` and compares, so the page cannot say anything else than the program does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"


def keys_table() -> str:
    from sandboxd.settings.key_table import ANY_SOURCE, TABLE, Combine, Effect
    from sandboxd.settings.schema import SettingsFile, section_of

    rows = ["| key | default | merged | from a project file | |", "| --- | --- | --- | --- | --- |"]
    for key, row in TABLE.items():
        model, names = SettingsFile, key.split(".")
        for name in names[:-1]:
            inner = section_of(model, name)
            assert inner is not None
            model = inner  # type: ignore[assignment]
        described = model.model_fields[names[-1]].description or ""
        merged = {Combine.REPLACE: "highest", Combine.UNION: "joined", Combine.STRICTEST: "strictest"}[row.combine]
        if row.sources != ANY_SOURCE:
            project = "no (" + ", ".join(sorted(source.value for source in row.sources)) + " only)"
        elif row.effect is Effect.SHAPES:
            project = "no"
        elif row.effect is Effect.BY_ENTRY:
            project = "entries that tighten"
        elif row.combine is Combine.UNION:
            project = "yes" if row.effect is Effect.CLOSES else "no"
        else:
            project = "stricter values"
        default = {None: "", (): "[]"}.get(row.default, str(row.default).lower())
        rows.append(f"| `{key}` | {default} | {merged} | {project} | {described.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def tools_table() -> str:
    from sandboxd.settings.tools import TOOLS, Feeds, RuleList

    with_content = {Feeds.DENIED_HOST, Feeds.ASKED_HOST, Feeds.DENY_WRITE, Feeds.DENY_READ}
    found: dict[tuple[str, ...], list[str]] = {}
    for name, tool in TOOLS.items():
        content = "PATTERN" if tool.is_shell else "domain:HOST" if name == "WebFetch" else "PATH"
        for rule, alone in ((f"`{name}({content})`", False), (f"`{name}`", True)):
            cells = [tool.feeds(kind, alone=alone) for kind in (RuleList.ALLOW, RuleList.DENY, RuleList.ASK)]
            whole = f": `{tool.whole}`" if alone else ""
            texts = (f"{cell.value}{whole if cell in with_content else ''}" for cell in cells)
            found.setdefault(tuple(texts), []).append(rule)
    rows = ["| rule | in `allow` | in `deny` | in `ask` |", "| --- | --- | --- | --- |"]
    rows += (f"| {', '.join(rules)} | {' | '.join(cells)} |" for cells, rules in found.items())
    return "\n".join(rows)


def presets_table() -> str:
    from sandboxd.settings.presets import PRESETS

    rows = []
    for name, preset in PRESETS.items():
        verb = "opens for writing" if preset.allow_write else "opens" if preset.opens else "closes for reading"
        paths = ", ".join(f"`{path}`" for path in (*preset.allow_write, *preset.deny_read))
        rows.append(f"- **`{name}`** {verb}: {preset.why}. {paths}".rstrip())
    return "\n".join(rows)


def sockets_table() -> str:
    from sandboxd.policy.sockets.control_sockets import CONTROL_SOCKETS

    rows = ["| socket | what a command could do with it |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| `{known.pattern}` | {known.gives} |" for known in CONTROL_SOCKETS)])


def wide_table() -> str:
    from sandboxd.policy.wide_grants import WIDE_GRANTS

    rows = ["| setting | wide is | because |", "| --- | --- | --- |"]
    for row in WIDE_GRANTS:
        keys = ", ".join(f"`{key}`" for key in row.keys)
        rows.append(f"| {keys} | {row.what} | {row.why} |")
    return "\n".join(rows)


TABLES = {
    "keys": keys_table,
    "tools": tools_table,
    "presets": presets_table,
    "sockets": sockets_table,
    "wide": wide_table,
}


def render(text: str) -> str:
    """The page with all its tables as the code has them now."""
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        rendered = table().replace("\\", "\\\\")
        text, count = pattern.subn(rf"\g<1>{rendered}\n\g<2>", text)
        assert count == 1, f"{PAGE.name} has no place for the table {name}"
    return text


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

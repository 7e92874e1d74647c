"""`sandboxd allow tool`: the hosts come from the configuration of the tool, and from nothing of a project."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sandboxd.cli.rules import tool_hosts
from sandboxd.cli.rules.allow import TOOLS as OF_ALLOW
from sandboxd.cli.rules.tool_hosts import ToolHost
from sandboxd.policy.explain.tools import TOOLS
from sandboxd_client.errors import SandboxdError

NPM = """; "default" config from default values

{default}
replace-registry-host = "npmjs"

; "user" config from /h/.npmrc

{user}
"""
PIP = 'PyPI = PackageIndex("https://index.test/", file_storage_domain="files.test")\n'
POM = "<project><url>https://central.test/maven2</url></project>"
SETTINGS = """<settings><!-- <url>https://no.test</url> --><mirrors><mirror><mirrorOf>x</mirrorOf>
<url>https://mirror.test:8443/m</url></mirror><mirror><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
</mirrors></settings>"""
CRATES = {"bin/cargo": "\0sparse+https://crates.test/\0"}
RUSTUP = {"rustup which cargo": "{home}/bin/cargo\n"}
NAMED = '[registries.a]\nindex = "sparse+https://a.test/i/"'
REPLACED = '[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "https://m.test/"'
TABLE = [
    # (tool, files below home, variables, what programs print, hosts; a star marks a default)
    ("pip", {"pip/_internal/models/index.py": PIP}, {}, {"pip --version": "pip 25 from {home}/pip (python 3)"},
     "*index.test *files.test"),
    ("pip", {".config/pip/pip.conf": "[global]\nindex-url = https://u:p@own.test/simple\nextra-index-url = http://b.test:81/"},
     {"PIP_EXTRA_INDEX_URL": "https://c.test/ file:///x"}, {}, "own.test c.test b.test:81"),
    ("npm", {}, {}, {"npm config ls -l": NPM.format(default='registry = "https://npm.test/"',
                     user='@a:registry = "https://a.test/"')}, "*npm.test a.test"),
    ("npm", {}, {}, {"npm config ls -l": NPM.format(default="", user='registry = "https://own.test/"')}, "own.test"),
    ("cargo", {".cargo/config.toml": NAMED, **CRATES}, {}, RUSTUP, "a.test *crates.test"),
    ("cargo", {".cargo/config.toml": REPLACED, **CRATES}, {}, RUSTUP, "m.test"),
    ("go", {}, {}, {"go env GOPROXY GOSUMDB": "https://proxy.test,direct\nsum.test\n"}, "*proxy.test *sum.test"),
    ("maven", {".m2/settings.xml": SETTINGS}, {}, {}, "mirror.test:8443 *central.test"),
    ("apt", {}, {}, {"apt-get indextargets --format $(SITE)": "http://deb.test/a\nhttp://deb.test/a\n"}, "deb.test"),
    ("git", {}, {}, {"git config --get-regexp": "remote.origin.url git@code.test:a/b.git\nremote.b.url https://b.test/x\n"
                     "remote.c.url /srv/x\nurl.https://real.test/.insteadof x:\n"}, "code.test:22 b.test real.test"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "files", "variables", "printed", "hosts"), TABLE)
def test_the_configuration_names_the_hosts(
    tool: str,
    files: dict[str, str],
    variables: dict[str, str],
    printed: dict[str, str],
    hosts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "lib").mkdir(exist_ok=True)
    with zipfile.ZipFile(tmp_path / "lib/maven-model-builder.jar", "w") as jar:
        jar.writestr("org/apache/maven/model/pom-4.0.0.xml", POM)

    def run(self: object, *words: str, **more: object) -> str:
        found = (text for key, text in printed.items() if " ".join(words).startswith(key))
        return next(found, "").replace("{home}", str(tmp_path))

    machine = tool_hosts._Machine
    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "program", lambda self, name: str(tmp_path / "bin" / name))
    for name in ("PIP_INDEX_URL", "XDG_CONFIG_HOME", "CARGO_HOME", "PIP_CONFIG_FILE", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    found = [one for one in tool_hosts.tool_hosts(tool, str(tmp_path)) if not one.where.startswith("/etc")]
    assert " ".join(("*" if one.is_default else "") + one.rule for one in found) == hosts
    assert all(isinstance(one, ToolHost) and one.where for one in found)


def test_a_tool_without_a_host_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxdError) as failed:
        tool_hosts.tool_hosts("git", str(tmp_path))
    assert "sandboxd run --ask" in failed.value.hint


def test_every_tool_of_a_hint_can_be_allowed() -> None:
    assert TOOLS == OF_ALLOW == tuple(tool_hosts._READERS)

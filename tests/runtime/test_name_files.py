"""The files that say where names are looked up inside: as C libraries read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.runtime.name_files import hosts, resolv_conf, write_name_files


@pytest.mark.parametrize(
    ("machine", "search"),
    [("desk", []), ("desk.corp.test", ["search ."]), ("", []), ("(none)", []), ("desk.", [])],
)
def test_one_server_and_no_search_domain(machine: str, search: list[str]) -> None:
    lines = [line for line in resolv_conf(machine).splitlines() if not line.startswith("#")]
    assert lines == ["nameserver 127.0.0.1", *search]


@pytest.mark.parametrize(
    ("machine", "own"),
    [
        ("desk", ["127.0.0.1 desk"]),
        ("Desk.Corp.test", ["127.0.0.1 desk.corp.test desk"]),
        ("localhost", []),
        ("", []),
        ("(none)", []),
        ("evil\n1.2.3.4 ok.test", []),
        ("10.0.0.1", []),
    ],
)
def test_loopback_and_the_machine_itself(machine: str, own: list[str]) -> None:
    assert hosts(machine).splitlines() == ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", *own]


def test_they_are_written_once_and_for_nobody_to_change(tmp_path: Path) -> None:
    written = write_name_files(str(tmp_path), "desk")
    assert [(path, Path(file).name) for path, file in written] == [
        ("/etc/resolv.conf", "resolv.conf"),
        ("/etc/hosts", "hosts"),
    ]
    assert "nameserver" in Path(written[0][1]).read_text()
    assert not stat.S_IMODE(Path(written[1][1]).stat().st_mode) & 0o222
    with pytest.raises(HostError) as raised:
        write_name_files(str(tmp_path), "desk")
    assert raised.value.slug == "temporary_directory"

"""The files that say where names are looked up inside: as C libraries read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.runtime.name_files import hosts, nsswitch, read_nsswitch, resolv_conf, write_name_files


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


@pytest.mark.parametrize(
    "line",
    [
        "hosts: files dns",
        "hosts:\tfiles dns # as always",
        "  hosts :  files   myhostname dns",
        "hosts: files dns myhostname",
    ],
)
def test_what_leads_to_us_already_is_left_alone(line: str) -> None:
    assert nsswitch(f"passwd: files\n{line}\nservices: db files\n") is None
    assert nsswitch("") is None, "the C library's default"


@pytest.mark.parametrize(
    "line",
    [
        "hosts: files mdns4_minimal [NOTFOUND=return] dns",
        "hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns",
        "hosts: files resolve",
        "hosts: files",
        "hosts: dns files",
        "hosts: files dns\nhosts: resolve",
        "# no hosts: here",
    ],
)
def test_host_names_come_from_our_files_and_our_service(line: str) -> None:
    found = nsswitch(f"passwd: files sss\n{line}\nservices: db files\n")
    assert found is not None
    lines = [line for line in found.splitlines() if line and not line.startswith("#")]
    assert lines == ["passwd: files sss", "services: db files", "hosts: files dns"]


def test_an_nsswitch_that_is_not_there(tmp_path: Path) -> None:
    assert read_nsswitch(str(tmp_path / "none")) == ""
    (tmp_path / "some").write_bytes(b"hosts: \xff\n")
    assert nsswitch(read_nsswitch(str(tmp_path / "some"))) == "\nhosts: files dns\n"


def test_they_are_written_once_and_for_nobody_to_change(tmp_path: Path) -> None:
    written = write_name_files(str(tmp_path), "desk")
    assert [(path, Path(file).name) for path, file in written] == [
        ("/etc/resolv.conf", "resolv.conf"),
        ("/etc/hosts", "hosts"),
    ]
    other = tmp_path / "other"
    other.mkdir()
    assert [path for path, _ in write_name_files(str(other), "desk", "hosts: resolve\n")][2:] == ["/etc/nsswitch.conf"]
    assert "nameserver" in Path(written[0][1]).read_text()
    assert not stat.S_IMODE(Path(written[1][1]).stat().st_mode) & 0o222
    with pytest.raises(HostError) as raised:
        write_name_files(str(tmp_path), "desk")
    assert raised.value.slug == "temporary_directory"

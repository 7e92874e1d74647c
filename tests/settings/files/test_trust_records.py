"""Records of trust that are not surely the user's count as none, and those of opened places as everything."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.settings.files.trust import OpenedPlaces, TrustedDirectory, TrustStore, remembered

CONTENT = b'{"sandbox": {}}'


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(str(tmp_path / "trust"))


def saved(store: TrustStore, directory: str) -> Path:
    """The file of a new record."""
    before = set(Path(store.directory).glob("*.json"))
    store.save(TrustedDirectory(directory, {".sandboxd/settings.json": remembered(CONTENT)}, 7.0))
    (file,) = set(Path(store.directory).glob("*.json")) - before
    return file


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def with_value(**change: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


NOT_THE_USERS: dict[str, Callable[[Path], object]] = {
    "writable for a group": lambda path: path.chmod(0o620),
    "writable for others": lambda path: path.chmod(0o602),
    "a link": replace_by_link,
    "a FIFO": replace_by_fifo,
    "a directory": replace_by_directory,
}


def test_a_record_is_found_as_it_was_saved(store: TrustStore) -> None:
    saved(store, "/srv/project")
    record = store.find("/srv/project")
    assert record is not None and record.trusted_at == 7.0 and store.all() == (record,)
    assert record.files == {".sandboxd/settings.json": remembered(CONTENT)}
    assert store.find("/srv") is None and store.find("/srv/project/below") is None


@pytest.mark.parametrize(
    "change",
    [
        *NOT_THE_USERS.values(),
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:-1]),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()),
        with_value(version=2),
        with_value(files=[]),
        with_value(files={"name": {"sha256": ""}}),
        with_value(trusted_at="yesterday"),
    ],
)
def test_a_record_that_is_not_surely_valid_is_none(store: TrustStore, change: Callable[[Path], object]) -> None:
    change(saved(store, "/srv/project"))
    assert store.find("/srv/project") is None and store.all() == ()


def test_a_record_of_another_directory_is_none(store: TrustStore) -> None:
    one, other = saved(store, "/srv/one"), saved(store, "/srv/other")
    shutil.copy(one, other)
    assert store.find("/srv/one") is not None and store.find("/srv/other") is None


def test_a_record_of_another_user_is_none(store: TrustStore, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(store, "/srv/project")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert store.find("/srv/project") is None


def test_a_directory_that_others_can_write_is_not_used(store: TrustStore) -> None:
    assert store.make()
    Path(store.directory).chmod(0o770)
    assert not store.make()


@pytest.fixture
def opened(store: TrustStore) -> Path:
    path = Path(store.directory) / "opened"
    OpenedPlaces(str(path)).add(["/srv/one", "/srv/two"], store)
    return path


def places(path: Path) -> set[str]:
    return OpenedPlaces(str(path)).read()


def test_opened_places_are_read_again(opened: Path) -> None:
    assert places(opened) == {"/srv/one", "/srv/two"}


@pytest.mark.parametrize("change", NOT_THE_USERS.values(), ids=NOT_THE_USERS)
def test_an_odd_record_opens_everything(opened: Path, change: Callable[[Path], object]) -> None:
    change(opened)
    assert places(opened) == {"/"}


def test_a_line_that_was_cut_off_harms_no_other(opened: Path, store: TrustStore) -> None:
    opened.write_text(opened.read_text() + '\n"/srv/thr')
    OpenedPlaces(str(opened)).add(["/srv/four"], store)
    assert places(opened) == {"/srv/one", "/srv/two", "/srv/four"}


def test_no_record_is_no_place_where_one_could_be(opened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.unlink()
    assert places(opened) == set()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert places(opened) == {"/"}

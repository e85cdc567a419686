"""Files and folders of a user: where others may have laid theirs first, and where there is no home."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from profiles.errors import BadInput
from profiles.files.safe_files import (
    closed_folder,
    in_utf8,
    is_locked,
    make_folder,
    named_folder,
    new_file,
    open_own,
    overwrite,
    own_folder,
    read_plain,
    try_lock,
    user_folder,
    write_whole,
)

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Make a file to which others would like to have us write."""
    path = tmp_path / "target"
    path.write_text("precious")
    return path


def link(path: Path) -> None:
    path.symlink_to(path.with_name("target"))


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("not there"))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def writable(path: Path) -> None:
    path.write_text("theirs")
    path.chmod(0o666)


def theirs(path: Path) -> None:
    path.write_text("theirs")
    os.chown(path, OTHER, -1)


def anew(path: Path) -> int:
    return open_own(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)


USES = [anew, lambda path: overwrite(path, "ours", 20), try_lock, is_locked]


@pytest.mark.parametrize(
    ("lay", "use"),
    [
        *((lay, use) for lay in (link, dangling, pipe) for use in USES),
        (writable, anew),
        pytest.param(theirs, anew, marks=as_root),
    ],
)
def test_what_others_lay_is_refused_unchanged(
    lay: Callable[[Path], None], use: Callable[[Path], object], target: Path
) -> None:
    path = target.with_name("laid")
    lay(path)
    with pytest.raises(OSError):
        use(path)
    assert target.read_text() == "precious"
    assert not path.with_name("not there").exists()
    assert path.is_fifo() or not path.exists() or path.read_text() in ("precious", "theirs")


@pytest.mark.parametrize(
    ("group", "is_first", "mode", "is_own"),
    [
        (("me", []), True, 0o664, True),
        (("me", ["me"]), True, 0o664, True),
        (("me", ["me", "you"]), True, 0o664, False),
        (("staff", []), True, 0o664, False),
        (("me", []), False, 0o664, False),
        (("me", []), True, 0o666, False),
    ],
)
def test_a_group_of_this_user_alone_is_nobody_else(
    group: tuple[str, list[str]],
    is_first: bool,
    mode: int,
    *,
    is_own: bool,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a group may write to all that was made under a umask of 002."""
    user = SimpleNamespace(pw_name="me", pw_gid=target.stat().st_gid + (not is_first))
    monkeypatch.setattr("pwd.getpwuid", lambda number: user)
    monkeypatch.setattr("grp.getgrgid", lambda number: SimpleNamespace(gr_name=group[0], gr_mem=group[1]))
    target.chmod(mode)
    with nullcontext() if is_own else pytest.raises(PermissionError, match="others may write"):
        os.close(open_own(target, os.O_RDONLY))


def test_a_file_of_a_group_is_not_own_where_users_have_no_names(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    target.chmod(0o660)
    with pytest.raises(PermissionError):
        open_own(target, os.O_RDONLY)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o2775), (0o022, 0o2755), (0o000, 0o2775)])
def test_a_group_shares_what_is_made_in_its_folder(umask: int, mode: int, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "shared" / "a" / "b")
        make_folder(tmp_path / "shared" / "c", 0o700)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "shared" / "a") == mode_of(tmp_path / "shared" / "a" / "b") == mode
    assert mode_of(tmp_path / "shared" / "c") == 0o2700


def test_a_file_aside_is_always_new(target: Path) -> None:
    aside = target.with_name(f".ours.{os.getpid()}")
    link(aside)
    with pytest.raises(FileExistsError):
        new_file(aside)
    write_whole(target.with_name("ours"), "ours")
    assert target.read_text() == "precious" and not aside.is_symlink()
    assert target.with_name("ours").read_text() == "ours"


def test_no_file_is_written_for_all(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_whole(tmp_path / "file", "text")
        make_folder(tmp_path / "a" / "b", 0o700)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == 0o644
    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "a" / "b")) == (0o755, 0o700)


def test_links_and_pipes_are_not_read(target: Path) -> None:
    for lay in (link, pipe):
        lay(target.with_name(lay.__name__))
        with pytest.raises(OSError):
            read_plain(target.with_name(lay.__name__), 100)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    assert mode_of(own_folder(tmp_path / "new", "")) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(BadInput, match=r"not a folder of yours alone .*; take another"):
            own_folder(tmp_path / name, "take another")
    if os.getuid() == 0:
        os.chown(tmp_path / "new", OTHER, -1)
        with pytest.raises(BadInput, match="belongs to somebody else"):
            own_folder(tmp_path / "new", "take another")


def test_a_folder_that_programs_trust_is_closed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert mode_of(closed_folder(tmp_path / "cache")) == 0o755
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    assert closed_folder(tmp_path / "link" / "layer").is_dir()
    (tmp_path / "cache").chmod(0o777)
    for path in (tmp_path / "cache" / "layer", tmp_path / "link" / "layer"):
        with pytest.raises(BadInput, match=r"everybody could exchange what is in .*; chmod o-w"):
            closed_folder(path)
    (tmp_path / "cache").chmod(0o1777)
    assert closed_folder(tmp_path / "cache" / "layer").is_dir()  # sticky, as /tmp


@as_root
def test_code_in_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER, -1)
    with pytest.raises(BadInput, match="belongs to somebody else"):
        closed_folder(tmp_path)


# Folders of a user who may have no home, or one with an odd name.


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one of a user that the machine does not know, without any variable."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)


def test_a_folder_is_named_or_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/me/.local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/me/.local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/elsewhere")


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"HOME is not set, .*; set HOME, or XDG_STATE_HOME"):
        user_folder("XDG_STATE_HOME", ".local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/elsewhere")


@pytest.mark.parametrize("home", [None, ""])
def test_an_empty_home_counts_as_none(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    known = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_folder("XDG_STATE_HOME", ".local/state") == known / ".local/state"


def test_a_name_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(b"/home/caf\xe9")
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv(name, odd)
        with pytest.raises(BadInput, match=f"{name} b'/home/caf.*' is not UTF-8") as refused:
            user_folder("XDG_STATE_HOME", ".local/state")
        str(refused.value).encode()
    with pytest.raises(BadInput):
        named_folder("XDG_STATE_HOME")
    assert in_utf8(Path("/home/caf\u00e9"), "--home") == Path("/home/caf\u00e9")

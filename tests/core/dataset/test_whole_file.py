"""A file is replaced as a whole or not at all, with the permissions it should have, and nothing is left behind."""

import os
import stat
import threading
import time

import pytest

from asymptotix.core.dataset.whole_file import LEFT_BEHIND_SECONDS, write_whole

UNPRIVILEGED = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_new_file_has_the_permissions_of_any_new_file(tmp_path):
    write_whole(tmp_path / "ours", b"123")
    (tmp_path / "plain").write_bytes(b"123")
    assert (tmp_path / "ours").read_bytes() == b"123"
    assert mode(tmp_path / "ours") == mode(tmp_path / "plain")


def test_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "shared"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o640)


def test_a_link_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far" / "file")
    write_whole(tmp_path / "near", b"123")
    assert (tmp_path / "near").is_symlink()
    assert (tmp_path / "far" / "file").read_bytes() == b"123"


def test_places_that_cannot_be_written_to_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no/file cannot be written: there is no folder .*no"):
        write_whole(tmp_path / "no" / "file", b"")
    with pytest.raises(IsADirectoryError, match="cannot be written: it is a folder; name a file in it"):
        write_whole(tmp_path, b"")
    with pytest.raises(OSError, match="/dev/null cannot be written: it is neither a file nor a new name"):
        write_whole("/dev/null", b"")
    assert os.listdir(tmp_path) == []


@UNPRIVILEGED
def test_what_is_write_protected_stays(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="file cannot be written: it is write-protected"):
        write_whole(path, b"new")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(PermissionError, match="other cannot be written"):
            write_whole(tmp_path / "other", b"new")
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == b"old"


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    for function in ("write", "fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                write_whole(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_only_old_leftovers_of_the_same_file_are_swept_up(tmp_path):
    old, young = time.time() - LEFT_BEHIND_SECONDS - 60, time.time() - LEFT_BEHIND_SECONDS + 60
    ages = {".a.nc.0123456789abcdef.partial": old, ".a.nc.4711.partial": old, ".a.nc.ff.partial": young,
            ".b.nc.0123456789abcdef.partial": old, ".a.nc.notes.partial": old, "a.nc.01.partial": old}  # fmt: skip
    for name, age in ages.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    write_whole(tmp_path / "a.nc", b"")
    kept = {"a.nc", ".a.nc.ff.partial", ".b.nc.0123456789abcdef.partial", ".a.nc.notes.partial", "a.nc.01.partial"}
    assert set(os.listdir(tmp_path)) == kept


def test_writers_do_not_meet(tmp_path):
    """Two threads have one process number, as two containers on one folder may."""
    contents = [bytes([k]) * 100_000 for k in range(2)]
    threads = [
        threading.Thread(target=lambda data=data: [write_whole(tmp_path / "file", data) for _ in range(20)])
        for data in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "file").exists():
            assert (tmp_path / "file").read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]

"""Downloads from a server on this machine that misbehaves in every way we could think of."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from asymptotix import cli
from asymptotix.tasks.stored import catalogue, download, locate
from asymptotix.tasks.stored.catalogue import StoredFile, StoredSet

pytest.importorskip("pooch", reason="downloads need pooch")

CONTENT = bytes(range(256)) * 1200  # several pieces of what is read at a time
NAME = "file.bin"


class Server(ThreadingHTTPServer):
    """Has contents by path, ways to answer the next requests (then the right one), and what was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents = {f"/{NAME}": CONTENT}
        self.ways: list[str] = []
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Answers a request in the way that the server has ready."""

    server: Server

    def do_GET(self):
        self.server.asked.append(self.path)
        way = self.server.ways.pop(0) if self.server.ways else "right"
        content = self.server.contents.get(self.path)
        if content is None:
            self.send_error(404)
            return
        if way == "page":
            content = b"<html>sorry</html>"
        if way == "corrupt":
            content = content[:-1] + b"?"
        self.send_response(200)
        if way != "too much":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if way == "cut":
            content = content[: len(content) // 2]
        self.wfile.write(content + b"more" * 2**16 * (way == "too much"))

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    own = Server()
    thread = threading.Thread(target=own.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield own
    own.shutdown()
    own.server_close()
    thread.join()


@pytest.fixture
def file(server):
    return StoredFile(NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), addresses=(server.url,))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "folder" / NAME


def files_in(folder):
    return sorted(os.listdir(folder))


def test_a_download_leaves_nothing_but_the_file(server, file, path):
    download.download(file, path, progress=False)
    assert path.read_bytes() == CONTENT
    assert files_in(path.parent) == [NAME]
    assert server.asked == [f"/{NAME}"]
    assert path.stat().st_mode & 0o044 == 0o044 & ~umask()  # like any file: others may share a directory of data


def umask():
    os.umask(own := os.umask(0))
    return own


def test_wrong_checksum(server, file, path):
    server.ways = ["corrupt"]
    with pytest.raises(download.DownloadError, match=f"{server.url}{NAME}: what it sent has another SHA-256 than"):
        download.download(file, path, progress=False)
    assert files_in(path.parent) == []
    download.download(file, path, progress=False)  # and the next call repairs
    assert path.read_bytes() == CONTENT


def test_a_damaged_file_is_replaced_by_a_right_one_only(server, file, path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    server.ways = ["corrupt"]
    with pytest.raises(download.DownloadError, match="SHA-256"):
        download.download(file, path, progress=False)
    assert path.read_bytes() == b"damaged"
    download.download(file, path, progress=False)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("way", "said"), [("cut", "the connection ended early"), ("page", "another SHA-256"), ("too much", "more than the")]
)
def test_an_answer_to_something_else_leaves_nothing(server, file, path, way, said):
    server.ways = [way]
    with pytest.raises(download.DownloadError, match=said):
        download.download(file, path, progress=False)
    assert files_in(path.parent) == []
    download.download(file, path, progress=False)
    assert path.read_bytes() == CONTENT


def test_the_next_address_is_asked_where_the_first_broke(server, path):
    server.contents["/mirror/" + NAME] = CONTENT
    addresses = (server.url + "gone/", server.url, server.url + "mirror/")
    mirrored = StoredFile(NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), addresses=addresses)
    server.ways = ["right", "cut"]
    download.download(mirrored, path, progress=False)
    assert server.asked == [f"/gone/{NAME}", f"/{NAME}", f"/mirror/{NAME}"]
    assert path.read_bytes() == CONTENT


def test_every_address_says_why_it_failed(server, path):
    addresses = (server.url + "gone/", "http://127.0.0.1:9/")
    nowhere = StoredFile(NAME, 3, "0" * 64, addresses=addresses)
    with pytest.raises(download.DownloadError, match=r"gone/file.bin: it answers 404 .*; .*:9/file.bin: there is no"):
        download.download(nowhere, path, progress=False)
    assert files_in(path.parent) == []


def test_a_user_who_stops(server, file, path, monkeypatch):
    def stopped(self, n=1, message=None):
        if self.done + n > 100:
            raise KeyboardInterrupt
        self.done += n

    with monkeypatch.context() as context:
        context.setattr(download.Progress, "advance", stopped)
        with pytest.raises(KeyboardInterrupt):
            download.download(file, path, progress=False)
    assert files_in(path.parent) == []


def test_a_place_that_cannot_be_written_to(server, file, tmp_path):
    (tmp_path / "data").write_text("a file where a directory should be")
    with pytest.raises(OSError, match=r"data/folder cannot be written to .* --to"):
        download.download(file, tmp_path / "data" / "folder" / NAME)
    assert server.asked == []


def refused(*_):
    raise PermissionError(13, "Permission denied")


def test_a_read_only_directory(server, file, path, monkeypatch):
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o555)
    if os.geteuid() == 0:  # whom the mode does not stop: then as the system would
        monkeypatch.setattr(download.Path, "touch", refused)
    with pytest.raises(PermissionError, match=r"folder cannot be written to \(Permission denied\); name another"):
        download.download(file, path)
    path.parent.chmod(0o755)
    assert server.asked == []


def test_a_full_disk_is_said(server, file, path, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("pooch.HTTPDownloader.__call__", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match=r"file.bin cannot be written: No space left on device"):
        download.download(file, path, progress=False)
    assert not path.exists()


# The command line


@pytest.fixture
def sets(server, tmp_path, monkeypatch):
    """Two data sets on the server; no variable set, and a cache of our own."""
    packed = gzip.compress(CONTENT, mtime=0)
    server.contents |= {"/numbers.gz": packed, "/words.txt": b"some words"}

    def stored(name, data, content=None):
        sums = (hashlib.sha256(data).hexdigest(), content and hashlib.sha256(content).hexdigest())
        return StoredFile(name, len(data), *sums, addresses=(server.url,))

    two = (stored("numbers.gz", packed, CONTENT), stored("words.txt", b"some words"))
    alone = stored("all.npz", b"numbers and words")
    first = StoredSet("both", "both_folder", "numbers, words", two, "MIT", "A. Author, 1999", (alone,))
    second = StoredSet("one-file", "one_file", "a file", (stored(NAME, CONTENT),), "none", "nobody")
    monkeypatch.setattr(catalogue, "DATA_SETS", {"both": first, "one-file": second})
    monkeypatch.delenv("ASYMPTOTIX_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(download, "cache_directory", lambda: tmp_path / "cache")
    return packed


def run(*arguments):
    return CliRunner().invoke(cli.app, ["data", *map(str, arguments)])


def test_list(sets, tmp_path):
    result = run("list")
    assert result.exit_code == 0
    for said in ("both", "numbers, words", "MIT", "A. Author, 1999", "one-file", "0.3 MB", str(tmp_path / "cache")):
        assert said in result.stdout


def test_get_to_a_directory(sets, server, tmp_path):
    to = tmp_path / "made" / "here"
    result = run("get", "both", "one-file", "--to", to)
    assert result.exit_code == 0, result.stderr
    assert (to / "both_folder" / "numbers.gz").read_bytes() == sets
    assert (to / "both_folder" / "words.txt").read_bytes() == b"some words"
    assert (to / "one_file" / NAME).read_bytes() == CONTENT
    assert f"ASYMPTOTIX_DATA={to}" in result.stdout
    assert locate.stored_file("both", "words.txt", to) == to / "both_folder" / "words.txt"
    server.asked.clear()
    again = run("get", "both", "--to", to)
    assert again.stdout.count("is there") == 2
    assert server.asked == []


def test_get_to_the_cache_or_where_the_variable_says(sets, tmp_path, monkeypatch):
    assert run("get", "one-file").exit_code == 0
    assert locate.stored_file("one-file", NAME) == tmp_path / "cache" / "one_file" / NAME
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(tmp_path / "named"))
    assert run("get", "one-file").exit_code == 0
    assert locate.stored_file("one-file", NAME) == tmp_path / "named" / "one_file" / NAME


def test_get_repairs_and_keeps_what_is_as_good(sets, server, tmp_path):
    folder = tmp_path / "both_folder"
    folder.mkdir()
    anew = gzip.compress(CONTENT, 1, mtime=5)
    (folder / "numbers.gz").write_bytes(anew)
    (folder / "words.txt").write_bytes(b"some wards")
    result = run("get", "both", "--to", tmp_path)
    assert result.exit_code == 0
    assert "numbers.gz: is there" in result.stdout
    assert "words.txt: replaces a damaged one" in result.stdout
    assert (folder / "numbers.gz").read_bytes() == anew
    assert (folder / "words.txt").read_bytes() == b"some words"
    assert server.asked == ["/words.txt"]


def test_one_file_that_holds_all_is_enough(sets, server, tmp_path):
    (tmp_path / "both_folder").mkdir()
    (tmp_path / "both_folder" / "all.npz").write_bytes(b"numbers and words")
    result = run("get", "both", "--to", tmp_path)
    assert "all.npz: is there, and holds all of it" in result.stdout
    assert server.asked == []


def test_get_fails_in_one_sentence(sets, server, tmp_path):
    server.ways = ["corrupt"]
    result = run("get", "one-file", "--to", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "another SHA-256" in result.stderr
    result = run("get", "one-file", "nothing", "--to", tmp_path)
    assert result.exit_code == 2
    assert "data_set must be one of 'both', 'one-file', got 'nothing'" in result.stderr
    assert not (tmp_path / "one_file" / NAME).exists()  # nothing is fetched where a name is wrong


def test_check(sets, tmp_path):
    run("get", "both", "--to", tmp_path)
    right = run("check", "--to", tmp_path)
    assert right.exit_code == 0
    assert "both: as published: " in right.stdout
    assert "one-file: not there: " in right.stdout
    (tmp_path / "both_folder" / "words.txt").write_bytes(b"some wards")
    wrong = run("check", "--to", tmp_path)
    assert wrong.exit_code == 1
    assert "both: damaged: " in wrong.stdout
    assert f"asymptotix data get both --to {tmp_path}" in wrong.stdout
    run("get", "both", "--to", tmp_path)
    assert run("check", "--to", tmp_path).exit_code == 0

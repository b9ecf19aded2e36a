"""Claims of processes on chunks, valid while their owner runs, on a file system that several machines may share.

A claim is a file that exactly one process manages to create. Its owner rewrites it every few seconds with a growing
number. No process trusts the clock of another machine: a claim is dead for a process that has seen it unchanged for the
length of a lease, by its own monotonic clock. It is dead at once if its owner ran on the same machine and is gone. Two
owners of one claim are unlikely and do no harm: they compute the same numbers, and the store keeps them once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: Length of a lease in seconds: a claim that is not renewed for this long is dead. Renewals are four times as frequent.
#: Larger: chunks of a lost machine wait longer. Smaller: a slow file system makes claims seem dead.
LEASE_SECONDS = 60.0


class Lease:
    """A claim that this process holds, renewed in a thread until it is released.

    Parameters
    ----------
    path : Path
        File of the claim.
    seconds : float
        Length of the lease in seconds: other processes may take the claim if it is not renewed for this long.
    """

    def __init__(self, path: Path, seconds: float = LEASE_SECONDS) -> None:
        self.path, self._seconds = path, seconds
        self._token, self._beats = secrets.token_hex(8), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        _held.add(self)
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.release()
        _held.discard(self)

    def release(self) -> None:
        """Remove the claim, if this process still holds it."""
        if self.is_held():
            self.path.unlink(missing_ok=True)

    def is_held(self) -> bool:
        """Return whether this process still holds the claim, which another process may have removed as dead."""
        return (read_claim(self.path) or {}).get("token") == self._token

    def create(self) -> bool:
        """Create the claim and return True; return False if another claim exists at its path."""
        temporary = self.path.with_name(f".{self._token}.claim")
        try:
            temporary.write_text(self._text())
            _place(temporary, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            raise OSError(error.errno, f"{self.path} cannot be claimed: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 4):
            self._beats += 1
            # A disk that is full for a while costs one renewal, not the work.
            with contextlib.suppress(OSError):
                if not self.is_held():
                    return
                temporary = self.path.with_name(f".{self._token}.claim")
                temporary.write_text(self._text())
                os.replace(temporary, self.path)

    def _text(self) -> str:
        return json.dumps(
            {"token": self._token, "beat": self._beats, "machine": this_machine(), "process": os.getpid(),
             "begun": _begun(os.getpid()), "seconds": self._seconds}
        )  # fmt: skip


def _place(written: Path, path: Path) -> None:
    """Create the claim ``path`` with the content of the file ``written``; raise FileExistsError if ``path`` exists.

    A hard link makes the complete file appear at once, on NFS too. File systems without links (exFAT, SMB, FUSE) create
    an empty file and then fill it. A process that reads the empty file finds no valid claim, and waits for the length
    of a lease as for any invalid file.
    """
    try:
        os.link(written, path)
        return
    except FileExistsError:
        raise
    except OSError:  # the error number differs between file systems without links
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(written.read_bytes())
    except BaseException:  # such as a full disk: others would wait for an empty claim
        path.unlink(missing_ok=True)
        raise


_held: set[Lease] = set()


def let_go() -> None:
    """Release all claims of this process, when a signal ends it at once. A process that crashes keeps its claims."""
    for lease in list(_held):
        with contextlib.suppress(OSError):
            lease.release()


def remove_left_behind(folder: Path, *, beside: Path) -> None:
    """Remove from ``folder`` all temporary files of claims older than a lease: their writers were killed.

    Ages are relative to the time stamp of the claim ``beside``, written just now: a file server's clock may be off.
    """
    now = beside.stat().st_mtime
    for path in [*folder.glob(".*.claim"), *folder.glob(".*.dead")]:
        with contextlib.suppress(OSError):  # its owner is alive and removed it first
            told = path.stat()
            if now - max(told.st_mtime, told.st_ctime) > LEASE_SECONDS:  # a move changes only st_ctime
                path.unlink()


class Watch:
    """Record of the claims of other processes, with the times at which this process saw the claims change.

    A claim that does not change for the length of a lease is dead.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[str, float]] = {}

    def claim(self, path: Path, seconds: float = LEASE_SECONDS) -> Lease | None:
        """Create the claim ``path`` and return its lease; None if a process that may still run holds it."""
        lease = Lease(path, seconds)
        return lease if self.frees(path) and lease.create() else None

    def frees(self, path: Path) -> bool:
        """Return whether the claim ``path`` is free: it does not exist, or it was dead and this call removed it."""
        claim = read_claim(path)
        if claim is None and not path.exists():
            return True
        return self._is_dead(path, claim) and _removed(path, claim)

    def _is_dead(self, path: Path, claim: dict[str, Any] | None) -> bool:
        if claim is None:  # an incomplete file
            return self._unchanged(path, "", LEASE_SECONDS)
        if is_surely_dead(claim):
            return True
        return self._unchanged(path, f"{claim.get('token')} {claim.get('beat')}", float(claim.get("seconds", 0.0)))

    def _unchanged(self, path: Path, sign: str, seconds: float) -> bool:
        before, when = self._seen.get(path, ("", 0.0))
        if path not in self._seen or before != sign:
            self._seen[path] = sign, time.monotonic()
            return False
        return time.monotonic() - when > seconds


def read_claim(path: Path) -> dict[str, Any] | None:
    """Return the contents of a claim (token, process, machine, ...); None if the file is missing or is no claim."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def this_machine() -> str:
    """Return a hash that identifies this machine since its last boot and does not reveal its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    # Containers share the machine's boot but not its processes: their process namespaces differ.
    with contextlib.suppress(OSError):
        boot += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {boot}".encode()).hexdigest()[:16]


def is_surely_dead(claim: dict[str, Any]) -> bool:
    """Return whether a claim, see :func:`read_claim`, belongs to a process of this machine that has ended."""
    return claim.get("machine") == this_machine() and not _lives(claim)


def _lives(claim: dict[str, Any]) -> bool:
    process = claim.get("process")
    if not isinstance(process, int):
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _begun(process) == claim.get("begun")  # another process may have its number by now


def _begun(process: int) -> str:
    """Return when a process number was started, in clock ticks since boot; "" if unknown or if it is a zombie."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in ("Z", "X") else after_name[19]


def _removed(path: Path, dead: dict[str, Any] | None) -> bool:
    """Remove the claim ``path`` if its content is still ``dead``; return True only in the process that removed it."""
    aside = path.with_name(f".{secrets.token_hex(8)}.dead")
    try:
        os.rename(path, aside)
    except OSError:
        return False
    if living := read_claim(aside) != dead:  # another process was faster, and this is the claim that came after
        with contextlib.suppress(OSError):
            _place(aside, path)
    aside.unlink(missing_ok=True)
    return not living

"""The lease of a target: which data directory may take writes. Promotion of a standby takes it from the old server.

    leases/{term}     who got the lease with this term

A file is created only if it does not exist, so each term has one holder. The lease belongs to the greatest term: a
higher term ends all lower ones, and nothing that a holder of a lower term writes, however late, can undo this. A holder
renews its lease by rewriting its own file and then listing the folder. (The write comes first because a client of a
network file system may cache the folder until it changes it itself.) If there is no higher term, the lease is valid for
`lease_s` from the moment before the write, by the holder's own clock, which also counts while the machine sleeps.

So whoever creates a higher term and then waits for `lease_s` by its own clock knows that the lease of the old holder
has ended: the last listing without the higher term was before it was created. Clocks of the two machines are not
compared; they only have to run at the same rate, within `LEASE_DRIFT`.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from headwater import limits
from headwater.elapsed import elapsed_s
from headwater.store.embedded.backup.failures import BackupError, DamagedBackupError, MissingError, TargetError
from headwater.store.embedded.backup.formats import seal, unseal
from headwater.store.embedded.backup.identity import FOLDER
from headwater.store.embedded.backup.targets import BackupTarget, claim
from headwater.store.embedded.layout import share

LEASES = "leases/"
_NAME = re.compile(r"leases/([0-9]{16})")
_DIRECTORY_NAME = "lease.id"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Lease(msgspec.Struct, frozen=True):
    term: int
    directory: str  # the id of the data directory that may take writes; empty if the file is not readable
    holder: str = ""  # the server that has it; empty if the next server on the directory may have it at once
    lease_s: float = 0.0


def name_of(term: int) -> str:
    return f"{LEASES}{term:016d}"


def newest(target: BackupTarget) -> Lease | None:
    """The lease with the greatest term. The name alone counts: a file that is not readable ends lower terms as well."""
    terms = [int(match[1]) for name in target.sizes(LEASES) if (match := _NAME.fullmatch(name))]
    if not terms:
        return None
    name = name_of(max(terms))
    try:
        return msgspec.msgpack.decode(unseal(name, target.get(name)), type=Lease)
    except (DamagedBackupError, MissingError, msgspec.MsgspecError):
        return Lease(max(terms), "")


def create(target: BackupTarget, lease: Lease) -> bool:
    """Get a term. False if another one got it."""
    return target.create(name_of(lease.term), seal(msgspec.msgpack.encode(lease)))


def write(target: BackupTarget, lease: Lease) -> None:
    target.put(name_of(lease.term), seal(msgspec.msgpack.encode(lease)))


# Who


def directory_id(directory: Path) -> str:
    """The id of a data directory for leases. A restore does not copy it, so a copy cannot take over unnoticed."""
    path = directory / FOLDER / _DIRECTORY_NAME
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        share(path.parent, directory)
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(16)}\n")
        file.flush()
        os.fsync(descriptor)
    share(fresh, directory)
    os.rename(fresh, path)
    return path.read_text("ascii").strip()


def holder_id(directory: Path) -> str:
    """The id of the servers on a directory that cannot run at the same time: the lock of the directory excludes them.

    A copy of the directory, on this machine or another, has another inode or another boot."""
    status = directory.stat()
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = secrets.token_hex(16)  # unknown: every start counts as another machine
    return hashlib.sha256(f"{boot} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:32]


# Holding


class LeaseState(enum.Enum):
    """What a holder knows.

    WAITING -> HELD        no higher term, and the lease of an earlier holder has ended
    HELD    -> EXPIRED     not renewed in time: the target does not answer
    EXPIRED -> HELD        renewed, with no higher term
    any     -> LOST        there is a higher term, or it belongs to another directory; final
    """

    WAITING = "waiting"
    HELD = "held"
    EXPIRED = "expired"
    LOST = "lost"


class LeaseHolder:
    """The lease of a server. `renew` talks to the target and may take long; `state` can be asked at any time."""

    def __init__(
        self, target: BackupTarget, directory: str, holder: str, lease_s: float, now_s: Callable[[], float] = elapsed_s
    ) -> None:
        self._target = target
        self._directory = directory
        self._holder = holder
        self._lease_s = lease_s
        self._now_s = now_s
        self._term = 0
        self._usable_s = 0.0  # not before this: an earlier holder may still take writes
        self._valid_until_s = float("-inf")
        self._lost = ""
        self.failures = 0
        self.url = target.url

    @property
    def state(self) -> LeaseState:
        now_s = self._now_s()
        if self._lost:
            return LeaseState.LOST
        if not self._term or now_s < self._usable_s:
            return LeaseState.WAITING
        return LeaseState.HELD if now_s < self._valid_until_s else LeaseState.EXPIRED

    @property
    def reason(self) -> str:
        """Why it is lost; empty if it is not."""
        return self._lost

    def renew(self) -> None:
        """Get the lease, or renew it. Raises TargetError if the target does not answer."""
        if self._lost:
            return
        try:
            if self._term:
                self._renew()
            else:
                self._begin()
        except TargetError:
            self.failures += 1
            raise

    def _begin(self) -> None:
        claim(self._target)
        lease = newest(self._target)
        if lease is None:
            self._take(1, wait_s=0.0)
        elif lease.directory != self._directory:
            self._lose(lease)
        elif lease.holder == self._holder:
            self._term = lease.term
            self._renew()
        elif not lease.holder:  # released, or granted by a promotion
            self._take(lease.term + 1, wait_s=0.0)
        else:  # the machine was restarted, or another one has a copy of this directory
            self._take(lease.term + 1, wait_s=lease.lease_s * limits.LEASE_DRIFT)

    def _take(self, term: int, wait_s: float) -> None:
        if create(self._target, self._lease(term)):
            self._usable_s = self._now_s() + wait_s
            self._term = term
            self._renew()
            with contextlib.suppress(TargetError):  # lower terms mean nothing any more
                self._target.remove([name for name in self._target.sizes(LEASES) if name < name_of(term)])
        # Otherwise another one was faster: the next attempt finds its lease.

    def _renew(self) -> None:
        before_s = self._now_s()
        write(self._target, self._lease(self._term))
        lease = newest(self._target)
        if lease is None:
            raise BackupError(f"{self._target.url} lacks {name_of(self._term)}, which was just written.")
        if lease.term != self._term or lease.directory != self._directory or lease.holder != self._holder:
            self._lose(lease)
        else:
            self._valid_until_s = before_s + self._lease_s

    def _lose(self, lease: Lease) -> None:
        whose = "another server on a copy of this" if lease.directory == self._directory else "another"
        self._lost = f"term {lease.term} belongs to {whose} directory"

    def _lease(self, term: int) -> Lease:
        return Lease(term, self._directory, self._holder, self._lease_s)

    def release(self) -> None:
        """Let the next server on this directory have the lease at once. The caller takes no more writes."""
        if self._term and self.state in (LeaseState.HELD, LeaseState.WAITING, LeaseState.EXPIRED):
            self._valid_until_s = float("-inf")
            lease = newest(self._target)
            if lease is not None and lease.term == self._term and lease.holder == self._holder:
                write(self._target, Lease(self._term, self._directory, "", self._lease_s))


class Renewal:
    """Renews a lease in a thread. `report` is called with what changes."""

    def __init__(self, lease: LeaseHolder, every_s: float, report: Callable[[str, LeaseState], None]) -> None:
        self._lease = lease
        self._every_s = every_s
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-lease", daemon=True)
        self._last_report: tuple[LeaseState, bool] | None = None  # the last report, and whether it was of a failure

    def start(self) -> None:
        self.look()
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Renew once, and report a change."""
        problem = ""
        try:
            self._lease.renew()
        except (BackupError, OSError) as error:
            problem = str(error)
        state = self._lease.state
        if (state, bool(problem)) != self._last_report:
            self._last_report = (state, bool(problem))
            self._report(problem or self._lease.reason, state)

    def stop(self) -> None:
        """Stop, and release the lease if the target answers."""
        if self._thread.ident is None:
            return
        self._stop.set()
        self._thread.join(self._every_s)
        try:
            self._lease.release()
        except (BackupError, OSError) as error:
            self._report(str(error), self._lease.state)


# Promotion


def promote(
    target: BackupTarget, directory: str, *, wait: Callable[[float], None], report: Callable[[str], None]
) -> Lease:
    """Take the lease for a directory and wait until the old holder's has ended. Raises TargetError."""
    while True:
        old_lease = newest(target)
        if old_lease is not None and old_lease.directory == directory and not old_lease.holder:
            return old_lease  # an earlier promotion was interrupted after its wait
        if old_lease is None:
            raise BackupError(
                f"no server holds a lease in {target.url}, so the old server cannot be fenced. Stop it for good, then "
                "promote with --force"
            )
        wait_s = (old_lease.lease_s or limits.LEASE_S_MAX) * limits.LEASE_DRIFT
        lease = Lease(old_lease.term + 1, directory, "promoting", old_lease.lease_s)
        if create(target, lease):
            break
    report(f"took term {lease.term} of the lease; waiting {wait_s:.1f} s until the lease of the old server has ended")
    wait(wait_s)
    last = newest(target)
    if last is None or last.term != lease.term:
        raise BackupError(f"the lease of {target.url} was taken meanwhile. Stop the other one, or promote again.")
    granted = Lease(lease.term, directory, "", lease.lease_s)
    write(target, granted)
    return granted


def force(target: BackupTarget, directory: str) -> Lease:
    """Take the lease for a directory without waiting."""
    while True:
        old_lease = newest(target)
        lease = Lease(
            1 if old_lease is None else old_lease.term + 1,
            directory,
            "",
            0.0 if old_lease is None else old_lease.lease_s,
        )
        if create(target, lease):
            return lease

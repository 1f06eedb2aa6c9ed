"""Edits the auth file: adds and revokes tokens, and leaves the rest of the text unchanged.

A change holds a lock on the directory, so that concurrent changes are not lost. The new file replaces the old one
atomically. It has the owner, group, mode and access list of the old one, so that the server can still read it; a change
that cannot keep these is refused. A new file is readable by its owner only. The text is parsed before it is written,
and refused if anything else than the token has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headwater.server.auth.rules import AuthFile, QuotaEntry, TokenEntry, parse_token, read_auth_file
from headwater.server.auth.tokens import digest_of, format_hash, new_token

_HEADER = re.compile(r"\s*\[(?!\s*token\s*\.)")  # the header of a table in TOML, not that of a part of a token
_TOKEN_HEADER = re.compile(r"\s*\[\[\s*token\s*\]\]\s*(#.*)?")
_NAME = re.compile(r"""\s*name\s*=\s*["']([^"']*)["']\s*(#.*)?""")
_MODE = 0o600
_ACCESS_LIST = "system.posix_acl_access"
_NEW = """\
# Who may use the server, and for what. Add tokens with: headwater token add
signing_secret = "{secret}"  # signs URLs; keep it to yourself
"""


def add_token(
    path: Path, name: str | None, scopes: list[str], expires: datetime | None, quota: QuotaEntry | None = None
) -> tuple[str, TokenEntry]:
    """Add a token to an auth file, which is created if needed. Returns the token, which is stored nowhere, and its
    entry."""
    token = new_token()
    digest = digest_of(token)
    created = datetime.now(UTC).replace(microsecond=0)
    entry = TokenEntry(name or f"token-{digest.hex()[:8]}", format_hash(digest), scopes, created, expires, quota)
    parse_token(entry)
    with _locked(path) as real:
        if real.exists():
            before, text = read_auth_file(real), real.read_text()
        else:
            text = _NEW.format(secret=secrets.token_urlsafe(32))
            before = msgspec.toml.decode(text, type=AuthFile)
        if any(known.name == entry.name for known in before.token):
            raise ValueError(f"{path} has a token {entry.name!r} already; choose another name, or revoke it first")
        after = msgspec.structs.replace(before, token=[*before.token, entry])
        _write(real, f"{text.rstrip()}\n\n{_formatted(entry)}", after)
    return token, entry


def revoke_token(path: Path, name: str) -> None:
    with _locked(path) as real:
        before = read_auth_file(real)
        kept = [token for token in before.token if token.name != name]
        if len(kept) == len(before.token):
            names = ", ".join(token.name for token in before.token)
            raise ValueError(f"{path} has no token {name[:80]!r}; there are: {names or 'none'}")
        _write(real, _without(real.read_text(), name), msgspec.structs.replace(before, token=kept))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """The file itself, with links resolved, locked against other editors."""
    real = Path(os.path.realpath(path))
    descriptor = os.open(real.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield real
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, text: str, expected: AuthFile) -> None:
    try:
        is_expected = msgspec.toml.decode(text, type=AuthFile) == expected
    except msgspec.DecodeError:
        is_expected = False
    if not is_expected:
        raise ValueError(f"{path} is written in a way that cannot be changed by this command; change it with an editor")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with the mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            _keep_permissions(path, descriptor)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _keep_permissions(path: Path, descriptor: int) -> None:
    """Give a new file the owner, the mode and the access list of the file that it replaces."""
    try:
        status = path.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, _MODE)
        return
    if status.st_nlink > 1:
        raise ValueError(f"{path} has {status.st_nlink} names (hard links), of which only this one would change")
    try:
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))  # after the owner, whose change may clear bits
        if _ACCESS_LIST in _attributes(path):
            os.setxattr(descriptor, _ACCESS_LIST, os.getxattr(path, _ACCESS_LIST))
    except OSError as error:
        raise ValueError(
            f"the owner {status.st_uid}:{status.st_gid} and the mode {stat.S_IMODE(status.st_mode):04o} of {path} "
            f"cannot be kept ({error.strerror}), and the server might not be able to read it; run this as its owner "
            "or as root"
        ) from None


def _attributes(path: Path) -> list[str]:
    try:
        return os.listxattr(path)
    except (OSError, AttributeError):  # not on this file system or system
        return []


def _formatted(entry: TokenEntry) -> str:
    lines = ["[[token]]", f"name = {_quoted(entry.name)}", f"hash = {_quoted(entry.hash)}"]
    lines.append(f"scopes = [{', '.join(map(_quoted, entry.scopes))}]")
    for name, moment in (("created", entry.created), ("expires", entry.expires)):
        if moment is not None:
            lines.append(f"{name} = {moment.astimezone(UTC).isoformat()}")
    if entry.quota is not None:
        limits = [f"{name} = {number}" for name, number in msgspec.to_builtins(entry.quota).items()]
        lines.append(f"quota = {{ {', '.join(limits)} }}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # a JSON string is a basic string of TOML


def _without(text: str, name: str) -> str:
    """The text of the file without the table of a token. Comments after the table are kept."""
    lines = text.splitlines(keepends=True)
    starts = [at for at, line in enumerate(lines) if _HEADER.match(line)] + [len(lines)]
    for start, end in itertools.pairwise(starts):
        block = [line.rstrip() for line in lines[start:end]]
        named = [match[1] for line in block if (match := _NAME.fullmatch(line))]
        if _TOKEN_HEADER.fullmatch(block[0]) and named == [name]:
            last = max(at for at, line in enumerate(block) if line and not line.startswith("#"))
            rest = itertools.dropwhile(lambda line: not line.strip(), lines[start + last + 1 :])
            return "".join([*lines[:start], *rest])
    return text

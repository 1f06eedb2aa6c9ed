"""The auth file: what it may hold, and how tokens are added and revoked."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.errors import TargetRefusedError
from headwater.log.quotas import TokenQuota
from headwater.server.auth.editing import add_token, revoke_token
from headwater.server.auth.keys import KeySet
from headwater.server.auth.rules import QuotaEntry, Rules, load_rules, parse_token_quota, read_auth_file
from headwater.server.auth.tokens import PREFIX, digest_of

HASH = "sha256:" + "0" * 64


def load(path: Path) -> Rules:
    return load_rules(path, lambda url: KeySet())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "auth.toml"


def test_a_token_is_printed_once_and_kept_as_a_hash(file: Path) -> None:
    token, entry = add_token(file, "ci", ["read:a/**", "append:ü\"'\\x"], datetime.now(UTC) + timedelta(days=30))
    assert token.startswith(PREFIX)
    assert len(token) >= 46
    assert token not in file.read_text()
    assert load(file).tokens[digest_of(token)].name == "ci"
    assert read_auth_file(file).token == [entry]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in repr(load(file))
    assert load(file).signing_secret is not None


def test_a_token_has_a_quota(file: Path) -> None:
    token, entry = add_token(file, "ci", ["read:a"], None, parse_token_quota("streams=3 live_readers=2"))
    assert entry.quota == QuotaEntry(streams=3, live_readers=2)
    assert read_auth_file(file).token == [entry]
    assert load(file).tokens[digest_of(token)].quota == TokenQuota("ci", streams_max=3, live_readers_max=2)
    with pytest.raises(ValueError, match="no limits"):
        add_token(file, "other", ["read:a"], None, parse_token_quota(""))


def test_a_token_is_revoked_with_the_table_of_its_quota(file: Path) -> None:
    of_quota = "[token.quota]\nstreams = 1\n"
    tokens = [f"[[token]]\nname = '{name}'\nhash = '{HASH[:-1]}{name}'\nscopes = []\n{of_quota}\n" for name in "ab"]
    file.write_text("".join(tokens))
    revoke_token(file, "a")
    assert file.read_text() == tokens[1]
    revoke_token(file, "b")
    assert read_auth_file(file).token == []


def test_a_file_keeps_what_else_is_in_it(file: Path) -> None:
    text = "# mine\nanonymous = ['read:open/**']  # public\n\n# tokens\n[[token]]  # one\nname = 'a'  # A\n"
    file.write_text(
        f"{text}hash = '{HASH}'\nscopes = []\n\n# of b\n[[token]]\nname = \"b\"\nhash = '{HASH[:-1]}1'\nscopes=[]\n"
    )
    add_token(file, "c", ["read:x"], None)
    revoke_token(file, "a")
    assert [token.name for token in read_auth_file(file).token] == ["b", "c"]
    assert file.read_text().startswith(
        "# mine\nanonymous = ['read:open/**']  # public\n\n# tokens\n# of b\n[[token]]\n"
    )
    revoke_token(file, "c")
    revoke_token(file, "b")
    assert read_auth_file(file).token == []


@pytest.mark.parametrize(
    "text",
    [
        f"token = [{{name = 'a', hash = '{HASH}', scopes = []}}]\n",
        f"[[token]]\n\"name\" = 'a'\nhash = '{HASH}'\nscopes = []\n",
        f"[[token]]\nname = 'a'\nhash = '{HASH}'\nscopes = [\n[\"read:x\"][0]\n]\n",
    ],
)
def test_what_cannot_be_changed_safely_stays_as_it_is(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match=r"auth file|editor"):
        revoke_token(file, "a")
    assert file.read_text() == text


def test_a_name_is_there_once(file: Path) -> None:
    add_token(file, "ci", ["read:x"], None)
    before = file.read_text()
    with pytest.raises(ValueError, match="'ci' already"):
        add_token(file, "ci", ["read:y"], None)
    with pytest.raises(ValueError, match="no token 'x'; there are: ci"):
        revoke_token(file, "x")
    for bad in ("a b", "a\n", "", "x" * 65, "anonymous", "a:b", '"'):
        with pytest.raises(ValueError, match="name"):
            add_token(file, bad or " ", ["read:y"], None)
    with pytest.raises(ValueError, match="scope"):
        add_token(file, "d", ["write:y"], None)
    assert file.read_text() == before
    assert os.listdir(file.parent) == [file.name]


def test_concurrent_changes_do_not_lose_one_another(file: Path) -> None:
    script = "import sys; from pathlib import Path; from headwater.server.auth.editing import add_token, revoke_token\n"
    script += "for n in range(10): add_token(Path(sys.argv[1]), f'{sys.argv[2]}-{n}', ['read:x'], None)\n"
    script += "revoke_token(Path(sys.argv[1]), f'{sys.argv[2]}-0')"

    def run(name: str) -> int:
        return subprocess.run([sys.executable, "-c", script, str(file), name], check=False).returncode

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(run, "abc")) == [0, 0, 0]
    names = {token.name for token in read_auth_file(file).token}
    assert names == {f"{name}-{number}" for name in "abc" for number in range(1, 10)}
    assert os.listdir(file.parent) == [file.name]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "real"
    directory.mkdir()
    file.symlink_to(directory / "auth.toml")
    add_token(file, "ci", ["read:x"], None)
    assert file.is_symlink()
    assert len(read_auth_file(file).token) == 1


BAD = {
    "a token in clear": f"[[token]]\nname='a'\nhash='{PREFIX}secretsecret'\nscopes=[]",
    "another hash": "[[token]]\nname='a'\nhash='md5:00'\nscopes=[]",
    "a wrong scope": f"[[token]]\nname='a'\nhash='{HASH}'\nscopes=['write:x']",
    "a name twice": f"[[token]]\nname='a'\nhash='{HASH}'\nscopes=[]\n" * 2,
    "a hash twice": f"[[token]]\nname='a'\nhash='{HASH}'\nscopes=[]\n[[token]]\nname='b'\nhash='{HASH}'\nscopes=[]",
    "a local time": f"[[token]]\nname='a'\nhash='{HASH}'\nscopes=[]\nexpires=2030-01-01T00:00:00",
    "an unknown key": "tokens = []",
    "no limits": f"[[token]]\nname = 'a'\nhash = '{HASH}'\nscopes = []\nquota = {{}}\n",
    "a limit of 0": f"[[token]]\nname = 'a'\nhash = '{HASH}'\nscopes = []\nquota = {{streams = 0}}\n",
    "an unknown limit": f"[[token]]\nname = 'a'\nhash = '{HASH}'\nscopes = []\nquota = {{stream = 1}}\n",
    "no TOML": "[[",
    "an issuer without keys": "[[issuer]]\nissuer='x'\naudience='y'",
    "an issuer with two": f"[[issuer]]\nissuer='x'\naudience='y'\nsecret='{'s' * 32}'\njwks_file='x'",
    "no audience": f"[[issuer]]\nissuer='x'\naudience=''\nsecret='{'s' * 32}'",
    "a weak secret": "[[issuer]]\nissuer='x'\naudience='y'\nsecret='secretsecret'",
    "a missing file": "[[issuer]]\nissuer='x'\naudience='y'\njwks_file='nowhere.json'",
    "a wrong signing secret": "signing_secret = 'secretsecret'",
    "an inner address": "[[issuer]]\nissuer='x'\naudience='y'\njwks_url='http://10.0.0.1/'",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_is_refused_that_has(file: Path, text: str) -> None:
    def refuse(url: str) -> KeySet:
        raise TargetRefusedError("a private address")

    file.write_text(text)
    with pytest.raises(ValueError, match="auth") as error:
        load_rules(file, refuse)
    assert "secretsecret" not in str(error.value)


def test_files_of_keys_are_beside_the_auth_file(file: Path) -> None:
    file.write_text("[[issuer]]\nissuer='x'\naudience=['y', 'z']\njwks_file='keys.json'\n")
    key = '{"kty": "oct", "k": "' + "A" * 43 + '"}'
    (file.parent / "keys.json").write_text('{"keys": [' + key + "]}")
    files: list[Path] = []
    rules = load_rules(file, lambda url: KeySet(), files)
    assert files == [file, file.parent / "keys.json"]
    assert [key.algorithm for key in rules.issuers["x"].keys.keys] == ["HS256"]


def _owner(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o400])
def test_a_change_keeps_owner_group_and_mode(file: Path, mode: int) -> None:
    add_token(file, "a", ["read:a"], None)
    if os.geteuid() == 0:  # as root, who edits the file of a server that runs as another user
        os.chown(file, 12345, 23456)
    file.chmod(mode)
    before = _owner(file)
    link = file.with_name("link.toml")
    link.symlink_to(file)
    add_token(link, "b", ["read:b"], None)
    assert _owner(file) == before
    revoke_token(link, "a")
    assert _owner(file) == before
    assert link.is_symlink()
    assert [token.name for token in read_auth_file(file).token] == ["b"]


def test_a_change_that_cannot_keep_the_owner_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_token(file, "a", ["read:a"], None)
    before = file.read_bytes()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    with pytest.raises(ValueError, match=r"cannot be kept .*run this as its owner or as root"):
        revoke_token(file, "a")
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_with_two_names_is_refused(file: Path) -> None:
    add_token(file, "a", ["read:a"], None)
    os.link(file, file.with_name("other.toml"))
    with pytest.raises(ValueError, match="2 names"):
        revoke_token(file, "a")
    assert [token.name for token in read_auth_file(file).token] == ["a"]

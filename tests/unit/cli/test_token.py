"""`headwater token`."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import Result

from headwater.server.auth.rules import read_auth_file
from tests.command_line import invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "auth.toml"


def run(*arguments: str | Path) -> Result:
    return invoke(["token", *map(str, arguments)])


def test_a_token_alone_is_on_standard_output(file: Path) -> None:
    added = run("add", file, "--scope", "read:prices/**", "--scope", "append:x", "--expires", "30d", "--name", "shop")
    assert added.exit_code == 0
    assert re.fullmatch(r"hw_[A-Za-z0-9_-]{43}\n", added.stdout)
    assert "'shop'" in added.stderr
    assert added.stdout.strip() not in added.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_tokens_are_listed_and_revoked_by_name(file: Path) -> None:
    token = run("add", file, "--scope", "read:x", "--name", "a").stdout.strip()
    run("add", file, "--scope", "admin:**", "--expires", "1h")
    listed = run("list", file)
    assert "read:x" in listed.stdout
    lines = [json.loads(line) for line in run("list", file, "--json").stdout.splitlines()]
    assert [line["scopes"] for line in lines] == [["read:x"], ["admin:**"]]
    assert [line["expired"] for line in lines] == [False, False]
    assert token not in listed.stdout
    assert run("revoke", file, "a").exit_code == 0
    assert len(read_auth_file(file).token) == 1
    again = run("revoke", file, "a")
    assert again.exit_code == 1
    assert "no token 'a'" in again.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--scope"),
        (["--scope", "write:x"], "a scope is ACTION:GLOB"),
        (["--scope", "read:x", "--expires", "soon"], "45m, 12h or 30d"),
        (["--scope", "read:x", "--expires", "0d"], "45m, 12h or 30d"),
        (["--scope", "read:x", "--expires", "999999999d"], "too far"),
        (["--scope", "read:x", "--name", "a b"], "a name has"),
    ],
)
def test_a_wrong_call_changes_nothing(file: Path, options: list[str], says: str) -> None:
    result = run("add", file, *options)
    assert result.exit_code != 0
    assert says in result.stderr
    assert not result.stdout
    assert not file.exists()


def test_a_url_is_signed_by_a_token_that_may_read_it(file: Path, tmp_path: Path) -> None:
    run("add", file, "--scope", "read:prices/**", "--name", "shop")
    url = "https://host/app/v1/stream/prices/eur?offset=-1"
    signed = run("sign", file, url, "--name", "shop", "--expires", "10m")
    assert signed.stdout.startswith(f"{url}&signed=")
    assert run("sign", file, "https://host/v1/table/prices/eur", "--name", "shop").exit_code == 0
    for arguments, says in (
        (["https://host/v1/stream/orders", "--name", "shop"], "read:orders"),
        ([url, "--name", "other"], "no token 'other'"),
        ([url, "--name", "shop", "--expires", "8d"], "7d"),
        (["https://host/x", "--name", "shop"], "/v1/stream/PATH"),
    ):
        refused = run("sign", file, *arguments)
        assert refused.exit_code != 0
        assert says in refused.stderr
        assert not refused.stdout
    run("add", file, "--scope", "append:orders", "--name", "form")
    orders = "https://host/v1/stream/orders"
    assert "?signed=append." in run("sign", file, orders, "--name", "form", "--append").stdout
    for name, options, says in (("form", [], "read:orders"), ("shop", ["--append"], "append:orders")):
        refused = run("sign", file, orders, "--name", name, *options)
        assert refused.exit_code != 0
        assert says in refused.stderr
    missing = run("list", tmp_path / "none.toml")
    assert missing.exit_code == 1
    assert "none.toml" in missing.stderr

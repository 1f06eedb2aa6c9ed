"""The files of `deploy/`. The proxies' are used by `tests/contract/test_http2.py`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.limits import Limits
from headwater.server.native.tls import load_context
from headwater.server.settings import CONFIG, OPTIONS, load_settings, variable
from tests.certificates import make_pair
from tests.command_line import invoke
from tests.edges import free_port
from tests.programs import missing, not_run, program
from tests.servers import serving
from tests.waiting import PROGRAM_LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "headwater.service").read_text()
UNITS = ("headwater.service", "headwater-backup.service")
BACKUP_UNIT = (DEPLOY / "headwater-backup.service").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OF_CLIENTS = {"HEADWATER_URL", "HEADWATER_TOKEN"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "healthcheck.py", "headwater.socket", *UNITS])
def test_every_variable_is_an_option(name: str) -> None:
    known = {*map(variable, OPTIONS), CONFIG, *OF_CLIENTS}
    known |= {f"HEADWATER_LIMIT_{limit.upper()}" for limit in Limits.__struct_fields__}
    assert {*re.findall(r"HEADWATER_[A-Z_]+", (DEPLOY / name).read_text())} <= known


# systemd


def test_the_unit_calls_a_command_that_there_is() -> None:
    (start,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    path, command, *options = shlex.split(start)
    assert (path, command) == ("/usr/local/bin/headwater", "serve")
    shown = invoke(["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(option in shown for option in options if option.startswith("--"))
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT


def test_the_unit_of_the_backup_reads_the_directory_of_the_server() -> None:
    (start,) = re.findall(r"^ExecStart=(.+)$", BACKUP_UNIT, re.MULTILINE)
    path, command, directory, _, *options = shlex.split(start)
    assert (path, command, directory) == ("/usr/local/bin/headwater", "backup", "/var/lib/headwater")
    shown = invoke(["backup", "run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert {"--follow", "--keep"} <= {*options}
    assert all(option in shown for option in options if option.startswith("--"))
    assert "StateDirectory=headwater\n" in UNIT
    assert "StateDirectory=headwater\n" in BACKUP_UNIT
    assert "User=headwater\n" in BACKUP_UNIT  # the name that DynamicUser gives to headwater.service


def test_the_unit_shows_the_server_what_it_reads_below_proc() -> None:
    """Without the number of the boot, a restart waits for the lease, and the clock does not continue."""
    sources = [path.read_text() for path in (DEPLOY.parent / "src" / "headwater").rglob("*.py")]
    outside = [path for text in sources for path in re.findall(r'"(/proc/(?!self/)[^"]+)"', text)]
    assert outside
    assert "ProcSubset=pid\n" not in UNIT


def test_a_stop_of_the_unit_reaches_the_server_alone() -> None:
    """The server ends its fold worker itself, after the last fold."""
    assert "KillMode=mixed\n" in UNIT


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_is_valid_and_hardened(name: str, tmp_path: Path) -> None:
    program("systemd-analyze")
    command = tmp_path / "headwater"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / name
    unit.write_text((DEPLOY / name).read_text().replace("/usr/local/bin/headwater", str(command)))
    socket_unit = tmp_path / "headwater.socket"
    shutil.copy(DEPLOY / "headwater.socket", socket_unit)
    sockets = [str(socket_unit)] if name == "headwater.service" else []
    verified = run("systemd-analyze", "verify", str(unit), *sockets)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit))
    assert rated.returncode == 0, rated.stdout[-2000:]


# Docker


def test_the_image_is_not_run_by_root_and_keeps_its_data_in_a_volume() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    lines = [line for line in last.splitlines() if not line.startswith(" ")]
    assert lines.index("USER headwater") < lines.index("VOLUME /data") < lines.index('CMD ["serve"]')
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_everything_that_the_image_copies_is_in_its_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for kept in ("src", "pyproject.toml", "README.md", "LICENSE", "deploy/healthcheck.py"):
        assert f"!{kept}" in ignored
        assert (ROOT / kept).exists()
    assert "!requirements/*.lock" in ignored


def locked(name: str) -> dict[str, str]:
    """The packages of a lock file and their versions. Each has hashes."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    entries = [entry for entry in re.split(r"\n(?! )", text) if entry.strip()]
    assert all("--hash=sha256:" in entry for entry in entries)
    return dict(entry.split(" ", 1)[0].split("==") for entry in entries)


@pytest.mark.parametrize(("name", "extras"), [("server", ("otel", "s3")), ("spark", ("otel", "s3", "spark"))])
def test_the_image_installs_the_versions_that_are_tested(name: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    names = {re.match(r"[a-z0-9-]+", one)[0] for one in needed}  # type: ignore[index]
    packages = locked(name)
    assert names <= packages.keys()
    assert packages.items() <= locked("dev").items()
    assert "hatchling" in locked("build")
    installs = re.findall(r"pip install .*", DOCKERFILE)
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)


def test_programs_that_are_missing_are_named_with_the_way_to_install_them() -> None:
    assert not_run(["a flaky network", "Skipped: no reason"]) == []
    with pytest.raises(pytest.skip.Exception) as skipped:
        missing("nginx")
    assert not_run([str(skipped.value)] * 2) == [
        "NOT RUN for lack of nginx: 2 tests. What to do: apt-get install nginx-light"
    ]


def test_the_services_of_compose() -> None:
    services = COMPOSE["services"]
    assert {*services} == {"headwater", "backup", "archive"}
    assert services["backup"]["image"] == services["headwater"]["image"]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
    for service in (services["headwater"], services["archive"]):
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in services["headwater"]["ports"])  # it is insecure
    for arguments in (services["archive"]["command"], services["backup"]["command"]):
        words = arguments[:2] if arguments[0] == "pipeline" else [arguments[0], "run"]
        shown = invoke([*words, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        assert all(option in shown for option in arguments if option.startswith("--"))


def test_the_services_of_compose_with_postgres() -> None:
    services = yaml.safe_load((DEPLOY / "compose.postgres.yaml").read_text())["services"]
    assert {*services} == {"database", "first", "second", "proxy"}
    assert services["first"] == services["second"]
    assert services["first"]["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])  # the servers are insecure
    assert [name for name in services if "ports" in services[name]] == ["proxy"]
    store = services["first"]["command"]
    assert store[:2] == ["serve", "--store"]
    load_settings({"store": store[2]}, {})
    config = (DEPLOY / "nginx.postgres.conf").read_text()
    assert re.findall(r"server (\w+):4437;", config) == ["first", "second"]
    assert "hash $uri consistent;" in config


def check_health(port: int, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "HEADWATER_PORT": str(port), **environment}
    command = [sys.executable, str(DEPLOY / "healthcheck.py")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)


def test_the_health_check(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    with serving(Limits()) as server:
        assert check_health(server.port).returncode == 0
    with serving(Limits(), load_context(pair.certificate, pair.key)) as server:
        assert check_health(server.port, HEADWATER_TLS_CERTIFICATE=str(pair.certificate)).returncode == 0
    ran = check_health(free_port())
    assert ran.returncode == 1
    assert "no answer from 127.0.0.1 on port" in ran.stderr


def test_the_health_check_reads_the_configuration_file(tmp_path: Path) -> None:
    """Address, port and TLS may be there, and a variable counts before the file."""
    pair, config = make_pair(tmp_path), tmp_path / "headwater.toml"
    named = {"HEADWATER_CONFIG": str(config), "HEADWATER_PORT": ""}
    with serving(Limits(), load_context(pair.certificate, pair.key)) as server:
        config.write_text(f'host = "localhost"\nport = {server.port}\ntls-certificate = "{pair.certificate}"\n')
        assert check_health(0, **named).returncode == 0
        config.write_text(f'port = {free_port()}\ntls-certificate = "{pair.certificate}"\n')
        assert check_health(0, **named).returncode == 1
        assert check_health(0, **named | {"HEADWATER_PORT": str(server.port)}).returncode == 0
        config.write_text("prot = 1\n")
        ran = check_health(0, **named)
        assert (ran.returncode, "there is no option prot; did you mean port?" in ran.stderr) == (1, True)


@pytest.fixture
def container() -> Iterator[str]:
    if run(program("docker"), "info").returncode != 0:
        missing("docker")  # its daemon
    name = f"headwater-test-{uuid.uuid4().hex[:8]}"
    try:
        built = subprocess.run(
            ["docker", "build", "-q", "-f", str(DEPLOY / "Dockerfile"), "-t", name, str(ROOT)],
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
        assert built.returncode == 0, built.stderr
        options = ("-d", "--name", name, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
        started = run("docker", "run", *options, "-e", "HEADWATER_INSECURE=true", name)
        assert started.returncode == 0, started.stderr
        yield name
    finally:
        run("docker", "rm", "-f", "-v", name)
        run("docker", "rmi", "-f", name)


@pytest.mark.slow
def test_the_image_is_built_and_becomes_healthy(container: str) -> None:
    inspect = ("docker", "inspect", "-f", "{{.State.Health.Status}}", container)
    wait_for(lambda: run(*inspect).stdout.strip(), "healthy")
    assert run("docker", "exec", container, "id", "-u").stdout.strip() == "10001"
    assert run("docker", "exec", container, "headwater", "create", "a").returncode == 0
    run("docker", "stop", "-t", "20", container)
    assert run("docker", "inspect", "-f", "{{.State.ExitCode}}", container).stdout.strip() == "0"

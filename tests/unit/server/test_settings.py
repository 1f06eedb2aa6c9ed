from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from headwater.errors import OptionError, OriginNotAllowedError
from headwater.limits import Limits, bounds_of, set_limits
from headwater.options import about, options_of
from headwater.server import settings as module
from headwater.server.http import Request
from headwater.server.settings import OPTIONS, Loaded, Settings, as_toml, doubtful_variables, load_settings


def load(
    text: str = "", path: Path | None = None, /, *, environment: dict[str, str] | None = None, **flags: Any
) -> Loaded:
    if path is not None:
        path.write_text(text)
    return load_settings(flags, environment or {}, path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headwater.toml"


def test_nothing_given_is_the_defaults() -> None:
    assert load() == Loaded(Settings(), {})


def test_flag_before_environment_before_file_before_default(file: Path) -> None:
    text = 'host = "::1"\nport = 1\nlog-level = "debug"'
    environment = {"HEADWATER_PORT": "2", "HEADWATER_HOST": "localhost"}
    loaded = load(text, file, environment=environment, port=3)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.log_level, settings.memory) == (3, "localhost", "debug", False)
    assert loaded.sources == {"port": "--port", "host": "HEADWATER_HOST", "log_level": f"{file}: log_level"}


def test_the_file_is_named_by_the_environment_too(file: Path) -> None:
    file.write_text("port = 7")
    assert load_settings({}, {"HEADWATER_CONFIG": str(file)}).settings.port == 7
    assert load_settings({}, {"HEADWATER_CONFIG": ""}).settings.port == 4437


def test_limits_of_all_sources_are_taken_one_by_one(file: Path) -> None:
    loaded = load(
        "[limits]\nlong_poll_s = 1\nidle_s = 1\nlinger_s = 1",
        file,
        environment={"HEADWATER_LIMIT_IDLE_S": "2", "HEADWATER_LIMIT_LINGER_S": "2"},
        limits=["linger_s=3"],
    )
    limits = loaded.settings.limits
    assert (limits.long_poll_s, limits.idle_s, limits.linger_s, limits.header_s) == (1, 2, 3, Limits().header_s)
    assert loaded.sources["limits.idle_s"] == "HEADWATER_LIMIT_IDLE_S"
    assert loaded.sources["limits.linger_s"] == "--limit"


def test_lists_replace_and_variables_divide_them_by_commas(file: Path) -> None:
    environment = {"HEADWATER_ALLOW_HOST": "a.example, b.example,"}
    loaded = load('allow_host = ["c.example"]\ntrusted_proxy = ["10.0.0.1"]', file, environment=environment)
    assert loaded.settings.allow_host == ("a.example", "b.example")
    assert loaded.settings.trusted_proxy == ("10.0.0.1",)


def test_a_directory_counts_before_the_memory_of_a_weaker_source(file: Path) -> None:
    assert load("memory = true", file).settings.memory
    assert not load("memory = true", file, data_dir=Path("kept")).settings.memory
    assert load('data_dir = "kept"', file, memory=True).settings.memory
    assert not load("memory = true", file, environment={"HEADWATER_MEMORY": "false"}).settings.memory
    with pytest.raises(OptionError, match="--memory and --data-dir exclude each other"):
        load(memory=True, data_dir=Path("kept"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "there is no option prot; did you mean port?"),
        ('[server]\nhost = ""', "there is no option server"),
        ("[limits]\nlong_poll = 1", "no limit is called 'long_poll'; did you mean long_poll_s?"),
        ("[limits]\nidle_s = true", "idle_s must be a number, got True"),
        ("[limits]\nviews_max = 1.5", "views_max must be a whole number, got 1.5"),
        ("[limits]\nviews_max = 0", "views_max must be from 1 to 1,000,000,000, got 0"),
        ("[limits]\nidle_s = nan", "idle_s must be from 0.01 to 86,400, got nan"),
        ("[limits]\nsegment_bytes = 1", "segment_bytes must be from 65,536 to 1,073,741,824, got 1"),
        ("[limits]\nstreams_max = -1", "streams_max must be 0 (no limit) or from 1 to 1,000,000,000, got -1"),
        ("limits = 3", "limits is a table"),
        ('port = "80"', "port: Expected `int`, got '80'"),
        ("port = 70000", "Expected `int` <= 65535"),
        ("port = true", "Expected `int`"),
        ('memory = "yes"', "Expected `bool`"),
        ('allow_host = "a"', "Expected `array`"),
        ('data_dir = ""', "a path"),
        ('data-dir = "a"\ndata_dir = "b"', "data_dir is given twice"),
        ('log_level = "loud"', "expected one of debug, info, warning, error, got 'loud'"),
        ('allow_origin = ["app.example"]', "allow_origin: an origin is like https://app.example"),
        ('allow_follow = ["ftp://127.0.0.1/"]', "allow_follow: "),
        ('public_url = "tables"', "public_url: a public URL is like"),
        ('trusted_proxy = ["proxy"]', "trusted_proxy: expected an address or a network"),
        ('trusted_proxy = ["10.0.0.1/8"]', "give 10.0.0.0/8 for the network, or 10.0.0.1 for the one address"),
        ('trusted_proxy = ["fd00::1/8"]', "give fd00::/8 for the network, or fd00::1 for the one address"),
        ('allow_host = ["https://streams.example"]', "allow_host: a host is like streams.example"),
        ("port = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: Path, text: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(text, file)
    assert str(caught.value).startswith(str(file))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HEADWATER_PORT", "many", "HEADWATER_PORT: Expected `int`, got 'many'"),
        ("HEADWATER_PORT", "tcp://10.0.0.1:4437", "enableServiceLinks: false"),
        ("HEADWATER_MEMORY", "perhaps", "HEADWATER_MEMORY: Expected `bool`"),
        ("HEADWATER_FOLLOW", "prices", "HEADWATER_FOLLOW: expected NAME=SURL"),
        ("HEADWATER_LIMIT_IDLE", "3", "HEADWATER_LIMIT_IDLE: no limit is called 'idle'"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(environment={name: value})
    assert says in str(caught.value)


def test_variables_that_look_like_options_are_told() -> None:
    others = {"HEADWATER_URL": "", "HEADWATER_TOKEN": "", "HEADWATER_SERVICE_HOST": "", "HEADWATER_PORT": ""}
    assert list(doubtful_variables({**others, "HEADWATER_PROT": "1", "PROT": "1"})) == [
        "HEADWATER_PROT is no option; did you mean HEADWATER_PORT?"
    ]


def test_what_is_shown_is_a_file_that_says_the_same(file: Path) -> None:
    loaded = load(data_dir=Path('odd "name\x7f\n'), allow_host=["a.example"], limits=["idle_s=2.5"])
    lines = list(as_toml(loaded))
    again = load("\n".join(lines), file)
    assert again.settings == loaded.settings
    assert 'allow_host = ["a.example"]  # --allow-host' in lines
    assert "idle_s = 2.5  # --limit" in lines
    assert "port = 4437  # default" in lines
    assert "# public_url is not used  # default" in lines
    unused = {name for name in Settings.__struct_fields__ if getattr(loaded.settings, name) is None}
    assert {*tomllib.loads("\n".join(lines))} == {*Settings.__struct_fields__} - unused


def test_the_directory_of_a_server_in_memory_is_not_shown_as_used(file: Path) -> None:
    loaded = load(memory=True)
    assert load("\n".join(as_toml(loaded)), file).settings == loaded.settings


def test_passwords_and_queries_of_urls_are_not_shown() -> None:
    follow = "prices=https://127.0.0.1/v1/table/prices?token=hush"
    shown = "\n".join(as_toml(load(follow=[follow])))
    assert "hush" not in shown
    assert "prices=https://127.0.0.1/v1/table/prices?…" in shown


def test_secrets_are_neither_shown_nor_told_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secret(Settings, frozen=True, kw_only=True):
        password: Annotated[str, about("Secret.", secret=True), msgspec.Meta(max_length=4)] = ""

    monkeypatch.setattr(module, "Settings", Secret)
    monkeypatch.setattr(module, "OPTIONS", {option.name: option for option in options_of(Secret)})
    loaded = load(environment={"HEADWATER_PASSWORD": "hush"})
    assert "hush" not in "\n".join(as_toml(loaded))
    assert "# password is secret  # HEADWATER_PASSWORD" in as_toml(loaded)
    with pytest.raises(OptionError, match="HEADWATER_PASSWORD") as caught:
        load(environment={"HEADWATER_PASSWORD": "hushhush"})
    assert "hush" not in str(caught.value)


def test_every_option_says_what_it_is_for() -> None:
    assert {*OPTIONS} == {*Settings.__struct_fields__}
    for option in OPTIONS.values():
        assert option.help.endswith("."), option.name


def test_every_default_is_within_the_bounds_of_its_limit() -> None:
    for field in msgspec.structs.fields(Limits):
        bounds = bounds_of(field.name)
        assert field.default in bounds, field.name
        assert 0 < bounds.least < bounds.most < float("inf"), field.name
        for value in (bounds.least, bounds.most):
            assert getattr(set_limits({field.name: value}), field.name) == value
        for value in (-1, bounds.least / 2 if isinstance(field.default, float) else bounds.least - 1, bounds.most + 1):
            if value not in bounds:
                with pytest.raises(ValueError, match=f"{field.name} must be"):
                    set_limits({field.name: value})


def test_limits_that_contradict_each_other_are_refused() -> None:
    limits = ["body_bytes_max=1000000", "request_bytes_in_flight_max=100000"]
    with pytest.raises(OptionError, match=r"body_bytes_max \(1,000,000\) is more than request_bytes_in_flight_max"):
        load(limits=limits)
    assert load(limits=[*limits, "body_bytes_max=100000"]).settings.limits.body_bytes_max == 100_000


PUBLIC: list[dict[str, Any]] = [
    {"auth": Path("auth.toml")},
    {"public_url": "https://streams.example"},
    {"trusted_proxy": ["127.0.0.1"]},
    {"allow_host": ["streams.example"]},
    {"host": "0.0.0.0", "insecure": True},
    {"host": "", "insecure": True},
]


def test_development_is_for_servers_of_one_machine() -> None:
    for flags in ({}, {"host": "::1"}, {"host": "localhost"}, {"insecure": True}):
        assert load(**flags).settings.is_development
        assert not load(development=False, **flags).settings.is_development
        assert load(environment={"HEADWATER_DEVELOPMENT": "true"}, **flags).settings.is_development


@pytest.mark.parametrize("flags", PUBLIC)
def test_development_is_off_and_refused_if_others_reach_the_server(flags: dict[str, Any], file: Path) -> None:
    loaded = load(**flags)
    assert not loaded.settings.is_development
    assert "# development is off  # default" in as_toml(loaded)
    with pytest.raises(OptionError, match=f"--development: development lets .* excludes {next(iter(flags))}"):
        load(development=True, **flags)
    with pytest.raises(OptionError, match="development: "):
        load("development = true", file, **flags)
    assert not load("development = true", file, development=False, **flags).settings.is_development


def test_a_server_that_is_open_behind_a_proxy() -> None:
    for flags in PUBLIC[1:3]:
        assert load(**flags).settings.is_open_behind_proxy
        assert not load(insecure=True, **flags).settings.is_open_behind_proxy
        assert not load(auth=Path("auth.toml"), **flags).settings.is_open_behind_proxy
    assert not load().settings.is_open_behind_proxy


def test_pages_of_the_clients_machine_are_not_allowed_behind_a_proxy() -> None:
    page = {"host": "localhost", "origin": "http://localhost:3000"}
    request = Request("POST", "/", "", page, b"")
    load().settings.access().check(request)
    for flags in PUBLIC[1:3]:
        with pytest.raises(OriginNotAllowedError):
            load(**flags).settings.access().check(request)

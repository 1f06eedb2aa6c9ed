"""Every option of `headwater serve`: name, type, default and meaning, in one place.

Flags, environment variables, the TOML file and the table in `docs/reference/options.md` are made from the fields of
`Settings`. The option `data_dir` is `--data-dir`, `HEADWATER_DATA_DIR`, or `data_dir` in the file. Flags override the
environment, which overrides the file. A limit is set by `--limit NAME=VALUE`, `HEADWATER_LIMIT_NAME`, or below
`[limits]` in the file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from headwater.errors import OptionError
from headwater.limits import WORKERS_MAX, Limits, check_together, set_limits
from headwater.log.quotas import Prefixes
from headwater.options import Option, about, check_known, options_of, read_toml
from headwater.server.access import Access, access_at, is_loopback, parse_host, parse_public_url
from headwater.server.default_retention import DefaultRetention, parse_rules
from headwater.server.following import FollowPolicy, parse_policy
from headwater.server.forwarding import Family, TrustedProxies
from headwater.server.memory import fit_memory
from headwater.server.observing import Observer
from headwater.server.observing.access_log import open_access_log
from headwater.server.observing.audit import open_audit_log
from headwater.server.observing.configuration import (
    ShownSetting,
    ShownSettings,
    shown_limits,
    shown_value,
    without_credentials,
)
from headwater.server.observing.logs import JSON
from headwater.server.observing.observer import RequestWatcher
from headwater.server.observing.tracing import check_endpoint, open_tracer
from headwater.server.quotas import parse_quotas

ENVIRONMENT = "HEADWATER_"
CONFIG = "HEADWATER_CONFIG"
_LIMIT = "HEADWATER_LIMIT_"
DEFAULT = "default"
_CHOSEN = "chosen at the start"  # a source: the server found another value than that of its options
POSTGRES_SCHEMES = ("postgresql", "postgres")
ACCEPT = "accept"  # of lease_unreachable


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    host: Annotated[str, about("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, about("Port to listen on; 0 takes a free one."), Meta(ge=0, le=65535)] = 4437
    data_dir: Annotated[Path, about("Data directory; created if it does not exist.", metavar="DIRECTORY")] = Path(
        "headwater-data"
    )
    memory: Annotated[bool, about("Keep all data in memory only; it is lost when the server stops.")] = False
    store: Annotated[
        str | None,
        about(
            "Keep all data in a PostgreSQL database, which several servers may share, in place of a data directory.",
            metavar="URL",
        ),
    ] = None
    workers: Annotated[
        int,
        about("Server processes on the port; more than one needs a store that they can share."),
        Meta(ge=1, le=WORKERS_MAX),
    ] = 1
    tls_certificate: Annotated[
        Path | None, about("Serve https with this certificate and its chain, in PEM format.", metavar="FILE")
    ] = None
    tls_key: Annotated[
        Path | None, about("Unencrypted key of the certificate, unless it is in the same file.", metavar="FILE")
    ] = None
    allow_origin: Annotated[
        tuple[str, ...],
        about("Allow requests from pages of an origin, as https://app.example; * for any.", metavar="ORIGIN"),
    ] = ()
    allow_host: Annotated[
        tuple[str, ...], about("Accept requests for this host name, besides loopback names; * for any.", metavar="NAME")
    ] = ()
    auth: Annotated[
        Path | None,
        about("File with the accepted tokens and issuers; headwater token add makes it.", metavar="FILE"),
    ] = None
    insecure: Annotated[
        bool, about("Allow all requests without a token, from every machine that reaches the address.")
    ] = False
    trusted_proxy: Annotated[
        tuple[str, ...],
        about("Trust the forwarding headers of proxies at this address or network.", metavar="ADDRESS"),
    ] = ()
    development: Annotated[
        bool | None,
        about(
            "Allow outbound requests to loopback addresses, also with http. By default on for a server that listens on "
            "loopback and has no auth, public_url, trusted_proxy and allow_host, and off for others."
        ),
    ] = None
    forwarding_headers: Annotated[
        Family | None,
        about(
            "Headers that the proxies set: x-forwarded or forwarded. By default those that a request has; one with "
            "both, which disagree, is refused.",
            metavar="FAMILY",
        ),
    ] = None
    public_url: Annotated[
        str | None,
        about(
            "Public URL of this server, as https://tables.example, used in the SURLs and NURLs that it sends.",
            metavar="URL",
        ),
    ] = None
    console: Annotated[bool, about("Serve the console, a page to look at streams and tables, at /console.")] = True
    follow: Annotated[tuple[str, ...], about("Mirror a remote table into a local table.", metavar="NAME=SURL")] = ()
    allow_follow: Annotated[
        tuple[str, ...], about("Follow tables below a URL when a Notify request names them.", metavar="PREFIX")
    ] = ()
    quota: Annotated[
        tuple[str, ...],
        about(
            "Limit what is below a path, as 'tenants/a streams=1000 bytes=1000000 appends_per_s=100 live_readers=50'.",
            metavar="PREFIX LIMITS",
        ),
    ] = ()
    retain: Annotated[
        tuple[str, ...],
        about(
            "What is kept of streams and tables that are created without a retention, by a glob over their paths, as "
            "'logs/** seconds=604800 bytes=10000000000'. The first that covers a path applies.",
            metavar="GLOB LIMITS",
        ),
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Lowest level that is logged: debug, info, warning or error.", metavar="LEVEL"),
    ] = "warning"
    log_format: Annotated[
        Literal["human", "json"],
        about("Format of the log and the access log: human or json.", metavar="FORMAT"),
    ] = "human"
    access_log: Annotated[
        str | None,
        about(
            "Write a line per request to this file, which is reopened on SIGHUP; - for standard output.", metavar="FILE"
        ),
    ] = None
    audit_log: Annotated[
        str | None,
        about(
            "Write who created, closed, deleted and signed what, and which tokens changed, to this file as JSON; - for "
            "standard output.",
            metavar="FILE",
        ),
    ] = None
    otel_endpoint: Annotated[
        str | None,
        about("Send traces to an OpenTelemetry collector with OTLP/HTTP, as http://127.0.0.1:4318.", metavar="URL"),
    ] = None
    otel_sample: Annotated[
        float,
        about("Share of the requests without a traceparent that are traced, from 0 to 1.", metavar="SHARE"),
        Meta(ge=0, le=1),
    ] = 0.01
    lease: Annotated[
        str | None,
        about(
            "Take writes only while this server holds the lease in a target of backups, so that a promoted standby is "
            "the only writer.",
            metavar="TARGET",
        ),
    ] = None
    lease_unreachable: Annotated[
        Literal["refuse", "accept"],
        about("Writes after the lease has ended because its target does not answer: refuse or accept.", metavar="HOW"),
    ] = "refuse"
    limits: Annotated[Limits, about("Limits, as long_poll_s=20.", metavar="NAME=VALUE")] = Limits()

    # Options that depend on each other. Raises ValueError.

    def access(self) -> Access:
        proxies = TrustedProxies(self.trusted_proxy, self.forwarding_headers)
        origins, hosts, behind_proxy = self.allow_origin, self.allow_host, self._behind_proxy
        return access_at(self.host, origins=origins, hosts=hosts, proxies=proxies, behind_proxy=behind_proxy)

    def policy(self) -> FollowPolicy:
        return parse_policy(self.follow, self.allow_follow, development=self.is_development)

    def prefixes(self) -> Prefixes:
        return parse_quotas(self.quota)

    def default_retention(self) -> DefaultRetention:
        return parse_rules(self.retain)

    def told_url(self) -> str | None:
        return None if self.public_url is None else parse_public_url(self.public_url)

    def check_auth(self) -> None:
        if self.auth is not None and self.insecure:
            raise ValueError("auth and insecure exclude each other")
        if self.auth is None and not self.insecure and not is_loopback(self.host.lower()):
            raise ValueError(
                f"a server on {self.host or 'every address'} can be reached from other machines; "
                "give --auth FILE (make one with: headwater token add FILE --scope 'admin:**'), "
                "or --insecure to let everyone read, write and delete"
            )

    def check_store(self) -> None:
        if self.store is None:
            return
        if self.memory:
            raise ValueError("store and memory exclude each other")
        scheme = self.store.partition("://")[0]
        if scheme not in POSTGRES_SCHEMES or "://" not in self.store:
            raise ValueError("a store is a postgresql:// URL; a directory is given as data_dir")

    def check_workers(self) -> None:
        if self.workers > 1 and self.store is None:
            kind = "a store in memory" if self.memory else "a data directory"
            raise ValueError(
                f"{kind} belongs to one process; {self.workers} need a store that they can share "
                "(store, a postgresql:// URL)"
            )

    def check_lease(self) -> None:
        if self.lease is not None and self.store is not None:
            raise ValueError("a lease is for a data directory; servers over PostgreSQL need none")
        if self.lease is not None and self.memory:
            raise ValueError("a server that keeps its data in memory has no backups, so it can hold no lease")

    def check_limits(self) -> None:
        check_together(self.limits)
        fit_memory(self.limits)

    def check_development(self) -> None:
        if self.development and self._for_others:
            raise ValueError(
                f"development lets clients make the server call this machine, so it excludes {self._for_others[0]}"
            )

    def check_tls(self) -> None:
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("a TLS key needs a certificate (tls_certificate)")

    def observer(self) -> Observer:
        """Open the access log, the audit log and the tracer."""
        watchers: list[RequestWatcher] = []
        if self.otel_endpoint is not None:
            watchers.append(open_tracer(self.otel_endpoint, self.otel_sample))
        if self.access_log is not None:
            watchers.append(open_access_log(self.access_log, as_json=self.log_format == JSON))
        audit = None if self.audit_log is None else open_audit_log(self.audit_log)
        return Observer(tuple(watchers), audit)

    @property
    def is_in_directory(self) -> bool:
        return not self.memory and self.store is None

    @property
    def is_development(self) -> bool:
        """Outbound requests to loopback addresses are allowed, with http as well."""
        return not self._for_others if self.development is None else self.development

    @property
    def is_open_behind_proxy(self) -> bool:
        """Whether everyone who reaches the proxy may do everything, and no option says that this is intended."""
        return self._behind_proxy and self.auth is None and not self.insecure

    @property
    def _behind_proxy(self) -> bool:
        return bool(self.public_url or self.trusted_proxy)

    @property
    def _for_others(self) -> list[str]:
        """The options that say that others than the users of this machine reach the server, by itself or a proxy."""
        options = [] if is_loopback(self.host.lower()) else [f"host {self.host or '(every address)'}"]
        return options + [name for name in ("auth", "public_url", "trusted_proxy", "allow_host") if getattr(self, name)]


# Checks at the start, by the option that an error names.
_CHECKS: dict[str, Callable[[Settings], object]] = {
    "limits": Settings.check_limits,
    "store": Settings.check_store,
    "workers": Settings.check_workers,
    "lease": Settings.check_lease,
    "tls_key": Settings.check_tls,
    "trusted_proxy": lambda settings: TrustedProxies(settings.trusted_proxy),
    "allow_host": lambda settings: [parse_host(host) for host in settings.allow_host],
    "development": Settings.check_development,
    "allow_origin": Settings.access,
    "public_url": Settings.told_url,
    "follow": lambda settings: parse_policy(settings.follow, development=settings.is_development),
    "allow_follow": Settings.policy,
    "auth": Settings.check_auth,
    "quota": Settings.prefixes,
    "retain": Settings.default_retention,
    "otel_endpoint": lambda settings: check_endpoint(settings.otel_endpoint),
}

OPTIONS: dict[str, Option] = {option.name: option for option in options_of(Settings)}


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and the source of each that is not a default. Limits are named `limits.NAME`."""

    settings: Settings
    sources: Mapping[str, str]


class _Source(msgspec.Struct, frozen=True):
    options: Mapping[str, Any]
    limits: Mapping[str, Any]
    name_of: Callable[[str], str]  # an option, as it is called there
    is_text: bool = False  # numbers are text


def variable(name: str) -> str:
    return f"{ENVIRONMENT}{name.upper()}"


def load_settings(flags: Mapping[str, Any], environment: Mapping[str, str], config: Path | None = None) -> Loaded:
    """Combine and check the settings of all sources. OptionError names the source and the invalid option."""
    if config is None and environment.get(CONFIG):
        config = Path(environment[CONFIG])
    sources = [] if config is None else [_from_file(config)]
    values: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    names: dict[str, str] = {}
    for source in (*sources, _from_environment(environment), _from_flags(flags)):
        options = dict(_converted(source))
        _replace_store(source, options, values, names)
        values |= options
        limits |= source.limits
        names |= {name: source.name_of(name) for name in (*options, *(f"limits.{name}" for name in source.limits))}
        for name, value in source.limits.items():
            try:
                set_limits({name: value})
            except ValueError as error:
                raise OptionError(f"{source.name_of(f'limits.{name}')}: {error}") from None
        values["limits"] = set_limits(limits)
    settings = Settings(**values)
    for name, check in _CHECKS.items():
        try:
            check(settings)
        except ValueError as error:
            raise OptionError(f"{names.get(name, name)}: {error}") from None
    return Loaded(settings, names)


def _replace_store(source: _Source, options: dict[str, Any], values: dict[str, Any], names: dict[str, str]) -> None:
    """Where data is kept overrides what sources with lower precedence say about that."""
    places = [name for name in ("memory", "data_dir", "store") if options.get(name)]
    if len(places) > 1:
        raise OptionError(f"{' and '.join(map(source.name_of, places))} exclude each other")
    if places:
        for name in ("memory", "data_dir", "store"):
            values.pop(name, None)
            names.pop(name, None)


def _from_file(path: Path) -> _Source:
    options = read_toml(path)
    check_known(options, OPTIONS, str(path))
    limits = options.pop("limits", {})
    if not isinstance(limits, dict):
        raise OptionError(f"{path}: limits is a table, [limits], with a line NAME = VALUE for each")
    return _Source(options, limits, lambda name: f"{path}: {name}")


def _from_environment(environment: Mapping[str, str]) -> _Source:
    """Empty variables count as not set. Lists are separated by commas."""
    texts = {name: environment[variable(name)] for name in OPTIONS if environment.get(variable(name))}
    texts.pop("limits", None)
    options = {
        name: [part.strip() for part in text.split(",") if part.strip()] if OPTIONS[name].many else text
        for name, text in texts.items()
    }
    limits = {name[len(_LIMIT) :].lower(): text for name, text in environment.items() if name.startswith(_LIMIT)}
    return _Source(
        options,
        {name: text for name, text in limits.items() if text},
        lambda name: variable(name).replace("LIMITS.", "LIMIT_"),
        is_text=True,
    )


def _from_flags(flags: Mapping[str, Any]) -> _Source:
    """The given flags; the limits are a list of `NAME=VALUE`."""
    options = {name: value for name, value in flags.items() if value is not None and value != []}
    limits = {}
    for text in options.pop("limits", ()):
        name, equals, limits[name] = text.partition("=")
        if not equals:
            raise OptionError(f"--limit: expected NAME=VALUE, got {text!r}")
    return _Source(options, limits, lambda name: "--limit" if name.startswith("limits") else OPTIONS[name].flag)


def _converted(source: _Source) -> Iterator[tuple[str, Any]]:
    for name, value in source.options.items():
        option = OPTIONS[name]
        where, shown = source.name_of(name), "" if option.secret else f", got {value!r}"
        choices = [] if option.many else _choices(get_args(option.type)[0])
        if isinstance(value, str) and choices:
            value = value.lower()
            if value not in choices:
                raise OptionError(f"{where}: expected one of {', '.join(choices)}{shown}")
        try:
            yield name, msgspec.convert(value, option.type, strict=not source.is_text, dec_hook=_decode)
        except msgspec.ValidationError as error:
            hint = "; Kubernetes sets it for a service of this name: use enableServiceLinks: false"
            note = hint if source.is_text and str(value).startswith("tcp://") else ""
            expected = str(error).partition(", got")[0] if shown else str(error)
            raise OptionError(f"{where}: {expected}{shown}{note}") from None


def _choices(hint: Any) -> list[str]:
    """The values of a Literal, which may be optional."""
    choices: list[str] = []
    for part in get_args(hint):
        choices += [part] if isinstance(part, str) else _choices(part)
    return choices


def _decode(kind: type, value: object) -> object:
    if kind is not Path or not isinstance(value, str | Path) or not str(value):
        raise TypeError("Expected a path")
    return Path(value)


def doubtful_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Warnings for environment variables that look like misspelled options."""
    known = [name.upper() for name in (*OPTIONS, "config")]
    for name in environment:
        if name.startswith(ENVIRONMENT) and not name.startswith(_LIMIT):
            own = name.removeprefix(ENVIRONMENT)
            close = difflib.get_close_matches(own, known, n=1, cutoff=0.7)
            if close and own not in known:
                yield f"{name} is no option; did you mean {ENVIRONMENT}{close[0]}?"


def as_toml(loaded: Loaded) -> Iterator[str]:
    """The settings as a TOML file, with the source of each. Secrets are left out."""
    for option in OPTIONS.values():
        value, source = getattr(loaded.settings, option.name), loaded.sources.get(option.name, DEFAULT)
        if option.name == "data_dir" and not loaded.settings.is_in_directory:
            value = None
        if option.name == "development" and value is None:
            yield f"# development is {'on' if loaded.settings.is_development else 'off'}  # {source}"
        elif option.name != "limits":
            yield _line(option.name, value, source, secret=option.secret)
    yield from ("", "[limits]")
    for name in Limits.__struct_fields__:
        yield _line(name, getattr(loaded.settings.limits, name), loaded.sources.get(f"limits.{name}", DEFAULT))


def shown_settings(settings: Settings, loaded: Loaded | None = None) -> ShownSettings:
    """The settings of a running server, with the source of each. `loaded` is what its options said."""
    loaded = loaded or Loaded(settings, {})

    def shown(option: Option) -> ShownSetting:
        value, was = (_in_effect(one, option.name) for one in (settings, loaded.settings))
        source = loaded.sources.get(option.name, DEFAULT) if value == was else _CHOSEN
        return ShownSetting(option.name, shown_value(value, secret=option.secret), source, option.help)

    def source_of(limit: str) -> str:
        is_same = getattr(settings.limits, limit) == getattr(loaded.settings.limits, limit)
        return loaded.sources.get(f"limits.{limit}", DEFAULT) if is_same else _CHOSEN

    options = [shown(option) for option in OPTIONS.values() if option.name != "limits"]
    return ShownSettings(options, shown_limits(settings.limits, source_of))


def _in_effect(settings: Settings, name: str) -> Any:
    if name == "development":
        return settings.is_development
    return None if name == "data_dir" and not settings.is_in_directory else getattr(settings, name)


def _line(name: str, value: object, source: str, *, secret: bool = False) -> str:
    if value is None or (secret and value):
        return f"# {name} is {'not used' if value is None else 'secret'}  # {source}"
    return f"{name} = {_literal(value)}  # {source}"


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(without_credentials(str(value)), ensure_ascii=False).replace("\x7f", "\\u007f")

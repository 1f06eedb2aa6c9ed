"""Options of jobs and of the Spark session, from flags, the environment and TOML files, without Spark.

A file for one job has the options of that job. A file for several jobs has their common options, and a table
`[jobs.NAME]` for each job, whose `job` is the kind of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from headwater.cli.connecting import DEFAULT_URL
from headwater.errors import OptionError
from headwater.options import about, check_known, options_of, read_toml, underscored
from headwater.pipeline.options import (
    ArchiveOptions,
    JobOptions,
    MaterializeOptions,
    PublishOptions,
    ReplayOptions,
    SnapshotOptions,
    names_of,
)

Port: TypeAlias = Annotated[int, Meta(ge=1, le=65_535)]
_WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
S = TypeVar("S", bound=msgspec.Struct)


KINDS: dict[str, type[JobOptions]] = {
    kind.job: kind for kind in (ArchiveOptions, ReplayOptions, MaterializeOptions, PublishOptions, SnapshotOptions)
}


class SessionOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the Spark session and its metrics."""

    master: Annotated[str, about("Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")] = "local[*]"
    conf: Annotated[dict[str, str], about("Any setting of Spark.", metavar="KEY=VALUE")] = {}
    metrics_port: Annotated[Port | None, about("Serve metrics for Prometheus on this port.")] = None


class PipelineFile(msgspec.Struct, frozen=True):
    """The content of a file: the session, and jobs by name."""

    session: SessionOptions
    jobs: dict[str, JobOptions]


def load_pipeline(path: Path, overrides: Mapping[str, Any] | None = None) -> PipelineFile:
    """Read a file of jobs. Options above `[jobs.NAME]` are for every job that has them; `overrides` take precedence."""
    overrides = tables_parsed(overrides or {}, "the options")
    shared_values = read_toml(path)
    tables = shared_values.pop("jobs", None)
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise OptionError(f"{path} has no jobs: each is a table [jobs.NAME] with job = one of {', '.join(KINDS)}")
    shared_values = layered(tables_parsed(shared_values, str(path)), overrides)
    session = {name: shared_values.pop(name) for name in names_in(SessionOptions) if name in shared_values}
    kinds = {name: _kind_of(name, table) for name, table in tables.items()}
    known = {name for kind in kinds.values() for name in names_in(kind)}
    check_known(shared_values, {*known, *names_in(SessionOptions), "jobs"}, str(path))
    jobs = {}
    for name, table in tables.items():
        shared = {key: value for key, value in shared_values.items() if key in names_in(kinds[name])}
        where = f"[jobs.{name}]"
        own = underscored({key: value for key, value in table.items() if key != "job"}, where)
        forced = {key: value for key, value in overrides.items() if key in shared}
        jobs[name] = job_options(kinds[name], layered(shared, tables_parsed(own, where), forced), where)
    _refuse_shared_places(jobs)
    return PipelineFile(session_options(session, str(path)), jobs)


def _refuse_shared_places(jobs: Mapping[str, JobOptions]) -> None:
    """Check that no two jobs write the same table or use the same checkpoint, and that none is inside another."""
    from headwater.pipeline.locations import check_apart

    owners: dict[str, str] = {}
    for name, options in jobs.items():
        for what, place in options.places().items():
            path = re.sub(r"^file:(//)?", "", place)
            first = owners.setdefault(path if _WITH_SCHEME.match(path) else os.path.realpath(path), name)
            if first != name:
                raise OptionError(f"[jobs.{first}] and [jobs.{name}] have the same {what}, {place}; give each its own")
    named = {f"[jobs.{name}]": {**options.places(), **options.inputs()} for name, options in jobs.items()}
    check_apart({f"the {what} of {name}": place for name, places in named.items() for what, place in places.items()})


def _kind_of(name: str, table: Mapping[str, Any]) -> type[JobOptions]:
    kind = table.get("job")
    if kind not in KINDS:
        raise OptionError(f"[jobs.{name}] needs job = one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind]


def job_options(kind: type[JobOptions], values: Mapping[str, Any], where: str) -> JobOptions:
    """Check the options of one job. Errors name their source, `where`."""
    values = underscored(values, where)
    defaults = {"url": os.environ.get("HEADWATER_URL", DEFAULT_URL), "token": os.environ.get("HEADWATER_TOKEN")}
    known = {name: value for name, value in defaults.items() if value is not None}
    return _convert(kind, layered(known, values), where)


def session_options(values: Mapping[str, Any], where: str) -> SessionOptions:
    """Check the options of the session, as far as this is possible without Spark."""
    from headwater.spark.home import check_master

    options = _convert(SessionOptions, values, where)
    check_master(options.master)
    for key in options.conf:
        if key in _OWN_SETTINGS:
            raise OptionError(f"{where}: conf has {key}; {_OWN_SETTINGS[key]}")
        if not re.fullmatch(r"spark\.[!-<>-~]+", key):
            raise OptionError(f"{where}: conf must have settings of Spark, spark.KEY=VALUE, got {key!r}")
    return options


_OWN_SETTINGS = {
    "spark.master": "set it with master",
    "spark.remote": "a Spark Connect server cannot run jobs",
    "spark.api.mode": "Spark Connect cannot run jobs",
    "spark.submit.deployMode": "the command is the driver",
}
_PAIRS = {  # options with values by name: how one is written as text, and the error
    "header": (re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~]*?)[ \t]*"), "'NAME: VALUE' in printable ASCII"),
    "conf": (re.compile(r"([^=\s]+)=(.*)", re.DOTALL), "KEY=VALUE"),
}
_CREDENTIALS = ("token", "token_file")


def tables_parsed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options with `header` and `conf` as tables of text: a list of texts is one, and so are dotted keys of TOML."""
    return {name: _table(name, value, where) if name in _PAIRS else value for name, value in values.items()}


def _table(name: str, value: Any, where: str) -> dict[str, str]:
    """Errors do not show values, which may be secrets."""
    form, expected = _PAIRS[name]
    if isinstance(value, dict):
        pairs = list(_flattened(value, ""))
    elif isinstance(value, list) and all(isinstance(text, str) for text in value):
        matches = [(text, form.fullmatch(text)) for text in value]
        for text, match in matches:
            if match is None:
                raise OptionError(f"{where}: {name} must be {expected}, got {re.split('[:=]', text)[0][:80]!r}")
        pairs = [(match[1], match[2]) for _, match in matches if match is not None]
    else:
        raise OptionError(f"{where}: {name} must be a table, or a list of {expected}")
    table: dict[str, str] = {}
    for key, one in pairs:
        key = key.lower() if name == "header" else key
        if key in table:
            raise OptionError(f"{where}: {name} has {key} twice")
        if not isinstance(one, str | int | float):
            raise OptionError(f"{where}: the {name} {key} must be text, a number, true or false")
        table[key] = str(one).lower() if isinstance(one, bool) else str(one)
    return table


def _flattened(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def names_in(kind: type[msgspec.Struct]) -> list[str]:
    """The names of the options of a struct."""
    return [option.name for option in options_of(kind)]


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of which later ones take precedence. Tables are joined, and a credential replaces any earlier one."""
    values: dict[str, Any] = {}
    for layer in layers:
        if any(name in layer for name in _CREDENTIALS) or "authorization" in layer.get("header", {}):
            values = {name: value for name, value in values.items() if name not in _CREDENTIALS}
            if "header" in values:
                values["header"] = {name: one for name, one in values["header"].items() if name != "authorization"}
        for name, value in layer.items():
            values[name] = {**values.get(name, {}), **value} if name in _PAIRS else value
    return values


def _convert(kind: type[S], values: Mapping[str, Any], where: str) -> S:
    check_known(values, names_in(kind), where)
    lists = {option.name for option in options_of(kind) if option.many}
    split = {name: names_of(value) or [] for name, value in values.items() if name in lists and isinstance(value, str)}
    try:
        return msgspec.convert({**values, **split}, kind)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        message = str(error).replace("Object missing required field", "missing:").replace(" - at `$.", ": `")
        raise OptionError(f"{where}: {message}") from None

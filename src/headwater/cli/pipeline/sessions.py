"""The Spark session of a command: checked before it starts, and errors of its start as one line."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headwater import limits
from headwater.cli.output import say
from headwater.cli.pipeline.config import SessionOptions
from headwater.cli.pipeline.java_output import JavaOutput
from headwater.errors import HeadwaterError, OptionError, SparkStartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = {"spark.log.level": "OFF"}  # failures are reported at the end
_UNREACHABLE = ("All masters are unresponsive", "Connection refused", "UnknownHostException")


def start_session(options: SessionOptions, output: JavaOutput) -> SparkSession:
    """Start Spark. OptionError if it does not start with the given settings."""
    from pyspark.logger import PySparkLogger

    import headwater.spark
    from headwater.spark.home import check_environment

    check_environment(options.master)
    _check_reachable(options.master)
    say(f"headwater: starting Spark ({options.master}), which takes some seconds", err=True)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # it logs errors that are also raised
    try:
        with output.collecting():
            return headwater.spark.session(
                "headwater-pipeline", master=options.master, config={**_QUIET, **options.conf}
            )
    except HeadwaterError:
        raise
    except Exception as error:
        raise _not_started(options, error, output) from error


def _not_started(options: SessionOptions, error: Exception, output: JavaOutput) -> Exception:
    reason = _cause(str(error)) or output.reason() or _first_line(error)
    if any(text in reason for text in _UNREACHABLE):
        return SparkStartError(f"Spark did not start on {options.master}: {reason}")
    if options.conf:
        return OptionError(f"Spark did not start with {', '.join(options.conf)}: {reason}")
    return SparkStartError(f"Spark did not start: {reason}")


def _cause(text: str) -> str | None:
    """The last cause in the text of a Java error."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    named = [line for line in lines if line.startswith(("java.", "org.", "scala.")) and ": " in line]
    return next(iter(causes[-1:] or named), None)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), type(error).__name__)


def _check_reachable(master: str) -> None:
    """Raise an error if no master of a standalone cluster answers: Spark itself would try for a minute."""
    if not master.startswith("spark://"):
        return
    failures = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), limits.PIPELINE_MASTER_CONNECT_S).close()
            return
        except (OSError, OverflowError) as error:
            failures.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise SparkStartError(f"no master of Spark answers at {master} ({'; '.join(failures)})")


def is_waiting_for_executors(spark: SparkSession) -> bool:
    """Whether no task of a stage has started, because the cluster has not given an executor yet."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return any(stage is not None and not (stage.numActiveTasks or stage.numCompletedTasks) for stage in stages)

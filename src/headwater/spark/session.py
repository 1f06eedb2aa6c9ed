"""Creates a Spark session with the formats, or adds the formats to an existing session."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from headwater.spark.formats import DurableStreamsFormat, StpFormat, StreamStateFormat
from headwater.spark.home import check_environment, check_master, compiled_home, python_files
from headwater.spark.java import java_home


def register(spark: SparkSession) -> SparkSession:
    """Add the formats `durable-streams`, `stream-state` and `stp` to a session."""
    for source in (DurableStreamsFormat, StreamStateFormat, StpFormat):
        spark.dataSource.register(source)
    return spark


def session(
    name: str = "headwater", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Create a session with the formats. It is local by default, and uses the system's Java or the packaged one.

    Raises OptionError if the master or the environment cannot work.
    """
    check_master(master)
    check_environment(master)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    if config is not None and "spark.pyspark.python" in config:
        os.environ["PYSPARK_PYTHON"] = config["spark.pyspark.python"]  # PySpark itself looks only at the variable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # tasks need the packages of this interpreter
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the host name of a laptop may not resolve
    builder = SparkSession.builder.appName(name).master(master)
    settings = {**_DEFAULTS, **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    with python_files(settings), compiled_home(master, settings):
        return register(builder.getOrCreate())


_LOGGING = Path(__file__).absolute().with_name("log4j2.properties").as_uri()  # workers may import it from a zip
_DEFAULTS = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",  # for small machines; the default of 200 makes every batch slow
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",  # between the JVM and its workers: 5 % faster than TCP
}

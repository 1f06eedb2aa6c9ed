"""The options of pipeline commands, from flags and from files, and what their exit codes say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater import errors
from headwater.cli.pipeline import watching
from headwater.cli.pipeline.config import PipelineFile, load_pipeline
from headwater.cli.pipeline.exit_codes import NEEDS_A_PERSON, RETRY, WRONG_OPTIONS, exit_code, exits
from headwater.errors import OptionError
from headwater.pipeline.jobs import JobProgress
from headwater.pipeline.options import ArchiveOptions, MaterializeOptions, PublishOptions
from headwater.spark.home import python_files
from tests.command_line import invoke

ARCHIVED = ["archive", "--streams", "a", "--table", "t"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[PipelineFile]:
    """What would be run."""
    for name in ("HEADWATER_URL", "HEADWATER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    pipelines: list[PipelineFile] = []
    monkeypatch.setattr(watching, "run", pipelines.append)
    return pipelines


def call(*arguments: str) -> tuple[int, str]:
    result = invoke(["pipeline", *arguments])
    return result.exit_code, result.output


def test_flags_are_options(ran: list[PipelineFile]) -> None:
    flags = ["--url", "http://h:1", "--streams", "a/*", "--table", "t", "--once", "--no-fail-on-data-loss"]
    assert call("archive", *flags, "--max-records", "5", "--master", "local[3]") == (0, "")
    [pipeline] = ran
    assert pipeline.session.master == "local[3]"
    assert pipeline.jobs == {
        "archive": ArchiveOptions(
            url="http://h:1", streams="a/*", table="t", once=True, fail_on_data_loss=False, max_records=5
        )
    }


def test_flags_come_before_the_file(ran: list[PipelineFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.toml"
    file.write_text('url = "http://file"\ntable = "t"\nkeys = ["a", "b"]\nto = "x"\ntype = "t"\nmetrics-port = 9\n')
    monkeypatch.setenv("HEADWATER_TOKEN", "secret")
    assert call("publish", "--config", str(file), "--to", "y", "--columns", "c, d") == (0, "")
    [pipeline] = ran
    assert pipeline.session.metrics_port == 9
    [options] = pipeline.jobs.values()
    expected = PublishOptions(
        url="http://file", token="secret", table="t", keys=["a", "b"], to="y", type="t", columns=["c", "d"]
    )
    assert options == expected
    assert "secret" not in repr(pipeline)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["archive", "--table", "t"], "the options: missing: `streams`"),
        (["archive", "--streams", "a", "--table", "t", "--max-bytes", "0"], "max_bytes"),
        (["materialize", "--streams", "a", "--table", "t", "--scd", "3"], "scd"),
        (["archive", "--tabel", "t"], "--table"),
        (["run", "missing.toml"], "missing.toml cannot be read: No such file or directory"),
        (["archive", "--config", "missing.toml"], "missing.toml cannot be read: No such file or directory"),
        ([*ARCHIVED, "--conf", "spark.x"], "conf must be KEY=VALUE, got 'spark.x'"),
        ([*ARCHIVED, "--conf", "=1"], "conf must be KEY=VALUE"),
        ([*ARCHIVED, "--conf", "memory=2g"], "conf must have settings of Spark, spark.KEY=VALUE, got 'memory'"),
        ([*ARCHIVED, "--conf", "spark.master=yarn"], "conf has spark.master; set it with master"),
        ([*ARCHIVED, "--conf", "spark.a=1", "--conf", "spark.a=2"], "conf has spark.a twice"),
        ([*ARCHIVED, "--header", "secret"], "header must be 'NAME: VALUE'"),
        ([*ARCHIVED, "--header", "a: 1", "--header", "A: 2"], "header has a twice"),
        ([*ARCHIVED, "--master", "sc://h:15002"], "sc://h:15002 is a Spark Connect server"),
        ([*ARCHIVED, "--master", "lokal[2]"], "master must be local[*], local[2], spark://HOST:7077"),
        ([*ARCHIVED, "--master", "local[0]"], "master must be"),
        ([*ARCHIVED, "--metrics-port", "70000"], "metrics_port"),
    ],
)
def test_wrong_options(ran: list[PipelineFile], arguments: list[str], message: str) -> None:
    code, output = call(*arguments)
    assert (code, message in output) == (2, True), output
    assert not ran


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2]", "local[2, 3]", "spark://h:1,g:2", "yarn", "k8s://h"]
)
def test_masters(ran: list[PipelineFile], master: str) -> None:
    assert call(*ARCHIVED, "--master", master) == (0, "")


def test_options_of_connection_and_session(
    ran: list[PipelineFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'token = "file"\nclient-certificate = "c"\n'
        '[header]\n"X-Api-Key" = "k"\nx-other = 7\n[conf]\nspark.executor.memory = "2g"\n"spark.a.b" = true\n'
    )
    monkeypatch.setenv("HEADWATER_TOKEN", "environment")
    flags = ["--token-file", "t", "--header", "x-api-key: own", "--conf", "spark.a.b=x=y", "--ca-file", "ca"]
    assert call(*ARCHIVED, "--config", str(file), *flags) == (0, "")
    [pipeline] = ran
    [options] = pipeline.jobs.values()
    assert (options.token, options.token_file) == (None, "t")
    assert options.headers == {"x-api-key": "own", "x-other": "7"}
    assert (options.ca_file, options.client_certificate, options.client_key) == ("ca", "c", None)
    assert pipeline.session.conf == {"spark.executor.memory": "2g", "spark.a.b": "x=y"}
    assert "own" not in repr(options)


def test_flags_of_run_are_for_every_job(ran: list[PipelineFile], tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f"conf = ['spark.a=1']\n{PIPELINE}token = 'own'\nheader = ['A: b']\n")
    flags = ["--url", "http://flag", "--header", "Authorization: Basic x", "--conf", "spark.b=2"]
    assert call("run", str(file), *flags) == (0, "")
    [pipeline] = ran
    assert [options.url for options in pipeline.jobs.values()] == ["http://flag"] * 2
    assert [options.token for options in pipeline.jobs.values()] == [None, None]
    assert pipeline.jobs["orders"].headers == {"a": "b", "authorization": "Basic x"}
    assert pipeline.session.conf == {"spark.a": "1", "spark.b": "2"}


PIPELINE = """
url = "http://shared"
once = true
master = "local[1]"

[jobs.raw]
job = "archive"
streams = "orders/**"
table = "lake/raw"

[jobs.orders]
job = "materialize"
streams = "orders/**"
table = "lake/orders"
once = false
url = "http://own"
scd = 2
track-history = ["total"]
"""


def test_a_file_of_jobs(ran: list[PipelineFile], tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE)
    assert call("run", str(file)) == (0, "")
    assert call("run", str(file), "--once", "--master", "local[7]") == (0, "")
    first, second = ran
    assert first.session.master == "local[1]"
    assert first.jobs == {
        "raw": ArchiveOptions(url="http://shared", streams="orders/**", table="lake/raw", once=True),
        "orders": MaterializeOptions(
            url="http://own",
            streams="orders/**",
            table="lake/orders",
            stored_as_scd_type=2,
            track_history_column_list=["total"],
        ),
    }
    assert second.session.master == "local[7]"
    assert [getattr(options, "once", None) for options in second.jobs.values()] == [True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "not TOML"),
        ("url = 'http://a'", "has no jobs"),
        ("[jobs.a]\njob = 'achive'", "job = one of archive"),
        ("strems = 'a'\n[jobs.a]\njob = 'archive'\ntable = 't'", "no option strems; did you mean streams?"),
        ("[jobs.a]\njob = 'archive'\ntabel = 't'", "[jobs.a]: there is no option tabel; did you mean table?"),
        ("[jobs.a]\njob = 'archive'\ntable = 1\nstreams = 's'", "table"),
        ("conf = 'spark.x=1'\n[jobs.a]\njob = 'archive'", "conf must be a table, or a list of KEY=VALUE"),
        ("conf = {'spark.x' = [1]}\n[jobs.a]\njob = 'archive'", "the conf spark.x must be text, a number"),
        ("[jobs.a]\njob = 'archive'\nheader = 7", "[jobs.a]: header must be a table"),
        (
            "[jobs.a]\njob = 'archive'\ntokenfile = 7",
            "[jobs.a]: there is no option tokenfile; did you mean token_file?",
        ),
        ("metrics_port = 'x'\n[jobs.a]\njob = 'archive'\ntable = 't'\nstreams = 's'", "metrics_port"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    with pytest.raises(OptionError) as raised:
        load_pipeline(file)
    assert message in str(raised.value)


ARCHIVE = "job = 'archive'\nstreams = 's'\ntable = "
PUBLISH = "job = 'publish'\nkeys = 'k'\ntype = 't'\ntable = 'lake/x'\nto = "


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (f"{ARCHIVE}'lake/x'", f"{ARCHIVE}'./lake//x/'", "[jobs.a] and [jobs.b] have the same table, ./lake//x"),
        (f"{ARCHIVE}'s3://b/x'\ncheckpoint = 'c'", f"{ARCHIVE}'s3://b/x'\ncheckpoint = 'd'", "table, s3://b/x"),
        (f"{ARCHIVE}'x'\ncheckpoint = 'file:///c'", f"{ARCHIVE}'y'\ncheckpoint = '/c'", "the same checkpoint, /c"),
        (f"{ARCHIVE}'x'", f"{PUBLISH}'p'\ncheckpoint = 'x.checkpoint'", "the same checkpoint, x.checkpoint"),
        (f"{PUBLISH}'p'", f"{PUBLISH}'p'", "for the stream p of http://"),
        (f"{ARCHIVE}'lake/x'", f"{PUBLISH}'p'", None),
        (f"{PUBLISH}'p'", f"{PUBLISH}'q'", None),
    ],
)
def test_jobs_of_one_file_do_not_share_what_they_write(
    tmp_path: Path, first: str, second: str, message: str | None, ran: list[PipelineFile]
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f"[jobs.a]\n{first}\n[jobs.b]\n{second}\n")
    code, output = call("run", str(file))
    assert code == (0 if message is None else WRONG_OPTIONS)
    assert (message or "") in output
    assert len(ran) == (1 if message is None else 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NetworkError(), RETRY),
        (errors.OverloadedError(), RETRY),
        (RuntimeError(), RETRY),
        (errors.OptionError(), WRONG_OPTIONS),
        (errors.DataLossError(), NEEDS_A_PERSON),
        (errors.BatchReusedError(), NEEDS_A_PERSON),
        (errors.CheckpointMismatchError(), NEEDS_A_PERSON),
        (errors.IncompleteArchiveError(), NEEDS_A_PERSON),
        (errors.ReplayError(), NEEDS_A_PERSON),
        (errors.UnauthorizedError(), NEEDS_A_PERSON),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_errors_end_with_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Any:
        def run(_: PipelineFile) -> None:
            raise error

        return run

    flags = ["archive", "--streams", "a", "--table", "t"]
    for error, code, message in (
        (errors.DataLossError("a: gone"), 3, "a: gone. Find out what deleted it"),
        (RuntimeError("trace\nheadwater.errors.DataLossError: b: gone\n at"), 3, "b: gone"),
        (RuntimeError("out of memory\n at java"), 1, "RuntimeError: out of memory. It can be tried again."),
        (PermissionError(13, "Permission denied", "/lake"), 1, "/lake: Permission denied"),
    ):
        monkeypatch.setattr(watching, "run", failing(error))
        exit_status, output = call(*flags)
        assert exit_status == code
        assert message in output
        assert len(output.splitlines()) == 1


def test_progress_in_words() -> None:
    progress = JobProgress(batches=2, rows=1500, rows_per_s=99.6, lag_bytes={"a": 0, "b": 7, "c": 1000})
    assert watching.summary(progress) == "1,500 rows in 2 batches, 100 rows/s, 1,007 bytes behind (c 1,000, b 7)"
    assert watching.summary(JobProgress(lag_bytes={"a": 0})) == "0 rows in 0 batches, 0 rows/s, 0 bytes behind"
    assert watching.summary(JobProgress(rows=1, batches=1)) == "1 rows in 1 batches, 0 rows/s"


def test_help_does_not_import_spark() -> None:
    program = "import sys, headwater.cli; sys.exit('pyspark' in sys.modules or 'deltalake' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def outcome(error: Exception) -> tuple[int, str]:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        with exits():
            raise error

    result = CliRunner().invoke(app)
    return result.exit_code, result.output


def test_what_java_says_is_told() -> None:
    class Py4JJavaError(Exception):
        pass

    text = "An error occurred while calling o261.start.\n: java.lang.IllegalStateException: two runs\n\tat a.b"
    assert outcome(Py4JJavaError(text)) == (
        RETRY,
        "headwater: Py4JJavaError: java.lang.IllegalStateException: two runs. It can be tried again.\n",
    )
    assert "Java process has ended" in outcome(ConnectionRefusedError(111, "Connection refused"))[1]


def test_the_error_of_a_worker_is_told() -> None:
    class PythonException(Exception):  # noqa: N818
        pass

    text = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
    ~~~~~~~^^
OSError: No such file or directory: 'lake/raw'
\tat org.apache.spark.api.python.BasePythonRunner"""
    assert outcome(PythonException(text)) == (
        RETRY,
        "headwater: a task of Spark failed: OSError: No such file or directory: 'lake/raw'. It can be tried again.\n",
    )
    java = "An error occurred while calling o1.x.\n: org.A: outer\n\tat a\nCaused by: java.io.IOException: disk\n\tat b"
    assert "PythonException: java.io.IOException: disk." in outcome(PythonException(java))[1]


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Run a command that must end before it starts Spark."""

    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("headwater.spark.session", start)
    return call(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token-file", "none"], "token_file {here}/none cannot be read: No such file or directory"),
        (["--token", "a", "--token-file", "none"], "set only one of token, token_file"),
        (["--ca-file", "none"], "ca_file and client_certificate need a url with https"),
        (["--url", "https://h", "--ca-file", "none"], "{here}/none cannot be used"),
        (["--url", "https://h", "--client-certificate", "none"], "{here}/none cannot be used"),
        (["--url", "https://h", "--client-key", "none"], "client_key needs client_certificate"),
        (["--url", "h:1"], "url must be that of a server"),
        (["--table", " "], "the path of a table or checkpoint is empty"),
        (["--checkpoint", "t"], "is the table itself"),
        (["--table", "s3://bucket/t"], "set a checkpoint"),
        (["--starting-timestamp", "yesterday"], "a time must be written as"),
        (["--starting-timestamp", "2026-01-01", "--starting-offsets", "latest"], "not both"),
        (["--starting-offsets", "newest"], "startingOffsets must be earliest or latest"),
        (["--streams", "a/../b"], "not a valid path"),
        (["--master", "spark://127.0.0.1:1"], "no master of Spark answers at spark://127.0.0.1:1"),
    ],
)
def test_what_cannot_work_is_told_before_spark_starts(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = started(monkeypatch, *ARCHIVED, *arguments)
    assert message.format(here=tmp_path) in output
    assert code == (RETRY if "no master" in message else WRONG_OPTIONS)
    assert len(output.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "--table", "none"], "there is no Delta table at none"),
        (["publish", "--table", "none", "--keys", "k", "--to", "x", "--type", "t"], "there is no Delta table at none"),
        (["publish", "--table", "none", "--keys", "k", "--to", "x"], "to needs type"),
        (["snapshot", "--streams", "x//y"], "not a valid path"),
    ],
)
def test_other_jobs_that_cannot_work(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = started(monkeypatch, *arguments)
    assert (code, len(output.splitlines())) == (WRONG_OPTIONS, 1)
    assert message in output


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SPARK_HOME", "/nowhere", "SPARK_HOME is '/nowhere', which has no bin/spark-submit"),
        ("SPARK_REMOTE", "sc://h", "SPARK_REMOTE is set"),
        ("PYSPARK_PYTHON", "python0", "PYSPARK_PYTHON is 'python0', which is not a program"),
    ],
)
def test_environments_that_cannot_work(
    name: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    code, output = started(monkeypatch, *ARCHIVED)
    assert (code, message in output) == (WRONG_OPTIONS, True), output
    assert not list(tmp_path.iterdir())


def test_the_home_of_another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "spark"
    for file in ("bin/spark-submit", "jars/spark-core_2.13-3.5.1.jar"):
        (home / file).parent.mkdir(parents=True)
        (home / file).touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    code, output = started(monkeypatch, *ARCHIVED)
    assert (code, "which is Spark 3.5.1, but PySpark is" in output) == (WRONG_OPTIONS, True), output


@pytest.mark.parametrize(
    ("files", "message"),
    [("a.whl", "which PySpark leaves out by its ending"), ("none.zip", "none.zip, which does not exist")],
)
def test_python_files_that_workers_would_not_get(
    files: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message), python_files({"spark.submit.pyFiles": files}):
        pass


def test_python_files_are_in_the_path_while_a_session_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "before")
    (tmp_path / "a.zip").touch()
    with python_files({"spark.submit.pyFiles": "a.zip, hdfs://h/b.zip"}):
        assert os.environ["PYTHONPATH"] == f"{tmp_path}/a.zip{os.pathsep}before"
    assert os.environ["PYTHONPATH"] == "before"

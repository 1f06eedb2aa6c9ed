"""`make smoke`: build the wheel and the sdist, install each into a clean environment, and run a first program, which
also loads all files of the console.

python -m tools.smoke [--no-spark]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

FIRST = """
import re, subprocess, sys, headwater, urllib.request
from pathlib import Path
from headwater.client import Client

command = [str(Path(sys.executable).with_name("headwater")), "serve", "--memory", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        line = server.stdout.readline()
        url = line.split(" at ")[1].split()[0].removesuffix("/v1/stream/")
        with Client(url) as client:
            stream = client.stream("smoke")
            stream.create()
            stream.append_many([{"n": n} for n in range(3)])
            assert stream.read().all() == [{"n": 0}, {"n": 1}, {"n": 2}]
            with urllib.request.urlopen(f"{url}/console") as answer:
                page = answer.read().decode()
            files = re.findall(r'"(console/[^"]+)"', page)
            assert len(files) > 10, files
            for file in files:
                with urllib.request.urlopen(f"{url}/{file}") as answer:
                    assert answer.read(), file
            if "spark" in sys.argv:
                import headwater.spark
                spark = headwater.spark.session("smoke", master="local[1]")
                rows = spark.read.format("durable-streams").options(url=url, streams="smoke").load()
                assert [row.value for row in rows.orderBy("order").collect()] == ['{"n":0}', '{"n":1}', '{"n":2}']
                spark.stop()
    finally:
        server.terminate()
print("headwater", headwater.__version__, *sys.argv[1:], "works")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-spark", action="store_true", help="leave out the extra [spark], which is 500 MB")
    arguments = parser.parse_args()
    wheel, sdist = build()
    attempts = [(wheel, ""), (sdist, "")]
    if not arguments.no_spark:
        attempts.append((wheel, "spark"))
    for package, extra in attempts:
        try_package(package, extra)


def build() -> tuple[Path, Path]:
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(DIST))
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def try_package(package: Path, extra: str) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-smoke-") as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory) / "bin" / "python")
        wanted = f"headwater[{extra}] @ {package.as_uri()}" if extra else str(package)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
        _run(python, "-c", FIRST, *([extra] if extra else []), cwd=directory)


def _run(*command: str, cwd: str | Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True)


if __name__ == "__main__":
    main()

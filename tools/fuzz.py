"""Fuzzing with coverage: `python -m tools.fuzz [TARGET …] --seconds 60`, or `make fuzz TARGET=… SECONDS=…`.

Runs the targets of `tests/fuzz` one after the other with atheris (`pip install '.[fuzz]'`, Linux), each in a
separate process. Inputs that reach new code are kept below `--corpus` and used again. An input that breaks a target is
written to `--crashes` and shown: add it to `tests/fuzz/crashes.py`, and fix the bug.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
from pathlib import Path

INPUT_BYTES_MAX = 4096
HANG_S = 25  # for one input
MEMORY_MIB_MAX = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of targets; all if absent")
    parser.add_argument("--seconds", type=int, default=60, help="how long to run each target")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz/corpus"))
    parser.add_argument("--crashes", type=Path, default=Path(".fuzz/crashes"))
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        _fuzz(options.targets[0], options.seconds, options.corpus, options.crashes)
    from tests.fuzz.targets import TARGETS

    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    broken = [
        name for name in options.targets or TARGETS if not _run(name, options.seconds, options.corpus, options.crashes)
    ]
    print(f"{len(broken)} broken: {', '.join(broken)}" if broken else "nothing was found")
    return 1 if broken else 0


def _run(name: str, seconds: int, corpus: Path, crashes: Path) -> bool:
    """Fuzz one target in a separate process, which libFuzzer ends. True if nothing broke."""
    crashes.mkdir(parents=True, exist_ok=True)
    options = ["--in-process", "--seconds", str(seconds), "--corpus", str(corpus), "--crashes", str(crashes)]
    ran = subprocess.run([sys.executable, "-m", "tools.fuzz", name, *options], capture_output=True, check=False)
    report, output = ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", output)
    covered = re.findall(r"cov: (\d+)", output)
    count, places = int(executed[1]) if executed else 0, covered[-1] if covered else "?"
    broken = "" if ran.returncode == 0 else ", BROKEN"
    print(f"{name:16} {count:>10,} inputs in {seconds} s, {places} places reached{broken}", flush=True)
    if ran.returncode != 0:
        print(f"{report[-2000:]}\n{output[-700:]}\nstatus {ran.returncode}")
    return ran.returncode == 0


def _fuzz(name: str, seconds: int, corpus: Path, crashes: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["headwater", "tests.fuzz"]):
        from tests.fuzz.crashes import CRASHES
        from tests.fuzz.targets import TARGETS

    logging.disable(logging.WARNING)
    target = TARGETS[name]
    directory = corpus / name
    directory.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate((*target.seeds, *CRASHES.get(name, ()))):
        (directory / f"seed-{number}").write_bytes(seed)
    words = corpus / f"{name}.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if len(word) <= 64))
    arguments = [
        f"-max_total_time={seconds}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-dict={words}",
        f"-artifact_prefix={crashes}/{name}-",
        "-print_final_stats=1",
        str(directory),
    ]
    atheris.Setup([sys.argv[0], *arguments], target.run)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    sys.exit(main())

"""The client needs nothing that only some platforms have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import PROGRAM_LIMIT_S

NOT_ON_WINDOWS = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")


@pytest.mark.parametrize("module", ["headwater.client", "headwater.state"])
def test_the_client_does_without_what_windows_lacks(module: str) -> None:
    program = f"import sys\nfor name in {NOT_ON_WINDOWS}:\n    sys.modules[name] = None\nimport {module}\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROGRAM_LIMIT_S)

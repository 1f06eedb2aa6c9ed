"""The examples run and say what their pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_provider_and_a_hub() -> None:
    assert "python examples/hub/exchange.py\n" in (ROOT / "examples" / "hub" / "README.md").read_text()
    ran = subprocess.run(
        [sys.executable, "-W", "error", "examples/hub/exchange.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    said = re.sub(r"127\.0\.0\.1:\d+", "HOST", ran.stdout).splitlines()
    assert said == [
        "provider  serves http://HOST/v1/table/manifest",
        "hub       serves http://HOST/v1/table/directory",
        "provider  advertises its callback http://HOST/v1/table/directory/notify",
        "provider  introduces itself: surl=http://HOST/v1/table/manifest",
        "hub       advertises its callback http://HOST/v1/table/manifests/acme/notify",
        "hub       lists acme/fhir_read at https://acme.example/fhir",
        "hub       lists acme/direct_message at https://acme.example/dm",
        "provider  sees acme/fhir_read, acme/direct_message in its copy of the directory",
        "provider  moves fhir_read and withdraws direct_message",
        "hub       lists acme/fhir_read at https://acme.example/fhir/v2",
        "hub       drops acme/direct_message",
        "provider  sees acme/fhir_read in its copy of the directory",
        "hub       lists an endpoint of another provider",
        "provider  sees acme/fhir_read, other/fhir_read in its copy of the directory",
        "both      have the other's rows, with the same SeqNos and timestamps",
    ]

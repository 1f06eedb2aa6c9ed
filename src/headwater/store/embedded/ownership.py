"""Who owns the files of a data directory: commands that root runs leave files that the user of the server can open."""

from __future__ import annotations

import os
from pathlib import Path


def share(path: Path, directory: Path) -> None:
    """Give a file that root has made to the owner of the data directory that it is in."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def hand_over(directory: Path, user: int, group: int) -> None:
    """Give a directory and everything in it to a user."""
    for folder, folders, names in os.walk(directory):
        for name in (*folders, *names):
            os.chown(Path(folder) / name, user, group, follow_symlinks=False)
    os.chown(directory, user, group)

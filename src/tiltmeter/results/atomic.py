"""Files and directories that are written whole or not at all, even if the machine crashes.

A directory is written next to its place, as `.NAME.RANDOM.part`, synced, and then exchanged with
what is there in one step. Where the system cannot exchange, what was there is first moved to
`.NAME.RANDOM.old`: a crash between the two moves leaves nothing at the place, and `recover` puts
the old directory back. Its writer holds a lock on each such folder, so that the next one can tell
the leftovers of a killed writer from the work of a living one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiltmeter.errors import TiltmeterError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PART, OLD = ".part", ".old"
STALE = 3600.0  # seconds after which a partial file is considered abandoned
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # of renameat2


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Write a directory atomically: whole, or not at all.

    Parameters
    ----------
    path : Path
        The directory to create or replace; its parents are created. Leftovers of killed writers
        are removed first.

    Yields
    ------
    Path
        A new, empty directory next to `path`. It takes the place of `path` at the end of the
        `with` block, and is removed if the block raises.

    Raises
    ------
    TiltmeterError
        The directory cannot be created, written or moved.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run"
    >>> with atomic_directory(path) as folder:
    ...     _ = (folder / "note.txt").write_text("done")
    ...     print(path.exists())
    False
    >>> [file.name for file in path.iterdir()]
    ['note.txt']
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent))
    except OSError as error:
        raise TiltmeterError(f"cannot write to {path}: {error.strerror or error}") from error
    try:
        with _locked(folder):
            yield folder
            folder.chmod(0o755)  # mkdtemp makes it readable by its owner only
            for file in sorted(folder.rglob("*"), reverse=True):
                sync(file)
            sync(folder)
            _move(folder, path)
            sync(path.parent)
    except OSError as error:
        raise TiltmeterError(
            f"could not save to {path}: {error.strerror or error}. What was there is unchanged; "
            "free some space or choose another directory"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, path: Path) -> None:
    """Move a directory to its place; what was there is then at `folder`, or removed."""
    if not path.exists():
        folder.rename(path)
        return
    try:
        exchange(folder, path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise
    old = path.with_name(folder.name.removesuffix(PART) + OLD)
    with _locked(path):
        path.rename(old)
        try:
            folder.rename(path)
        except OSError:
            old.rename(path)
            raise
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)


def exchange(first: Path, second: Path) -> None:
    """Exchange two directories in one step; OSError (ENOSYS, EINVAL) where that is impossible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, "no renameat2")
    names = os.fsencode(first), os.fsencode(second)
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(second))


def recover(path: Path) -> None:
    """Put back what a killed writer of `path` had moved away, and remove what it left.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run"
    >>> (path.parent / ".run.a1b2.old").mkdir()
    >>> recover(path)
    >>> path.is_dir()
    True
    """
    ours = re.compile(rf"\.{re.escape(path.name)}\.\w+({OLD}|{PART})")
    if not path.parent.is_dir():
        return
    leftovers = [file for file in path.parent.iterdir() if ours.fullmatch(file.name)]
    for leftover in sorted(leftovers, key=lambda file: file.suffix):  # .old before .part
        if not _abandoned(leftover):
            continue
        if leftover.suffix == OLD and not path.exists():
            leftover.rename(path)
            sync(path.parent)
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _abandoned(path: Path) -> bool:
    """Whether the writer of a leftover is gone: its lock is free, or the file is old."""
    try:
        if path.is_dir() and fcntl is not None:
            with _locked(path, wait=False):
                return True
        return time.time() - path.stat().st_mtime >= STALE
    except OSError:
        return False


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # a file system without locks does without: leftovers are then never removed
        with contextlib.suppress(OSError) if wait else contextlib.nullcontext():
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # directories on Windows
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync directories
            raise
    finally:
        os.close(handle)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file atomically, even if the machine crashes; the last writer of a name wins.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_atomically(path, lambda to: to.write_text("done"))
    >>> path.read_text()
    'done'
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)

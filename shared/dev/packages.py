"""Reads pip's output: how far it is, why it failed, and what to do about it. Pure.

Standard library only: `dev.py` uses it before there is a `.venv`.
"""

from __future__ import annotations

import re

_COLLECTING = re.compile(r"^Collecting ", re.MULTILINE)
_DOWNLOADING = re.compile(r"^\s+(?:Downloading|Using cached) ([A-Za-z0-9_.]+?)-\d\S*( \([^)]*\))?", re.MULTILINE)
_BUILDING = re.compile(r"^Building wheels for collected packages: (.+)$", re.MULTILINE)
_INSTALLING = re.compile(r"^Installing collected packages: (.+)$", re.MULTILINE)

_FULL_BYTES = 8 << 20
_DISK_FULL = ("the disk is full", "free about 1 GB (`pip cache purge` may help), then run again")

# In this order: a full disk or a dead network also leaves the messages of the failures that it causes.
_CAUSES = (
    (r"No space left on device|Errno 28|Disk quota exceeded", *_DISK_FULL),
    (
        r"ensurepip is not available|No module named '?(?:venv|ensurepip)",
        "this Python has no venv module",
        "install it (Debian, Ubuntu: apt install python3-venv), or use a Python that has it, then run again",
    ),
    (
        r"DO NOT MATCH THE HASHES|Hashes are required|HashMismatch",
        "a downloaded package is not the one that was locked, and was refused",
        "restore requirements/ (git status), run `pip cache purge`, then again; "
        "if it stays, the package index serves an altered file: do not use it",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerification",
        "the package index's certificate is not trusted here (a company proxy?)",
        "point pip at your certificates (`pip config set global.cert FILE`), then run again",
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|Connection (?:refused|reset)|ProxyError"
        r"|Temporary failure in name resolution|Network is unreachable|Read timed out|nodename nor servname",
        "the package index cannot be reached",
        "check the network or the proxy (`pip config list` shows what pip uses), then run again",
    ),
    (
        r"Could not find a version that satisfies|No matching distribution found",
        "the package index has no build of a locked package for this Python and system",
        "use a Python from 3.11 to 3.14 on Linux or macOS (name it: python3.12 dev.py …), then run again",
    ),
    (
        r"Failed building wheel|Failed to build|subprocess-exited-with-error",
        "a locked package has no ready build for this Python and could not be compiled",
        "use a Python from 3.11 to 3.14 (name it: python3.12 dev.py …), then run again",
    ),
    (
        r"Permission denied|Read-only file system",
        "a file may not be written",
        "make the checkout and pip's cache writable for you, then run again",
    ),
)


def has_begun(log: str) -> bool:
    """Whether pip has begun to change the installed packages."""
    return bool(_INSTALLING.search(log))


def progress_of(log: str, pins: int, installed: int) -> tuple[int, int, str]:
    """(how many, of how many, doing what), from pip's output so far. pins: packages in the lock file."""
    if installing := _INSTALLING.search(log):
        names = installing[1].split(", ")
        return installed, len(names), "installing"
    if building := _BUILDING.search(log):
        return pins, pins, f"building {building[1]}"
    downloads = _DOWNLOADING.findall(log)
    doing = "downloading " + "".join(downloads[-1]) if downloads else "asking the package index"
    return len(_COLLECTING.findall(log)), pins, doing


def diagnose(log: str, free_bytes: int) -> tuple[str, str]:
    """(what went wrong, what to do), from the output of pip or venv, which a full disk may have cut off."""
    if free_bytes < _FULL_BYTES:
        return _DISK_FULL
    for pattern, problem, fix in _CAUSES:
        if re.search(pattern, log, re.IGNORECASE):
            return problem, fix
    last_lines = [line.strip() for line in log.splitlines() if line.strip()]
    return (last_lines or ["it failed without any output"])[-1], "read the log, remove the cause, then run again"

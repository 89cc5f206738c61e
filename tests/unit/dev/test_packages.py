from __future__ import annotations

import pytest

from shared.dev.packages import diagnose, progress_of

GIGABYTE = 1 << 30
DOWNLOADING = """\
Collecting aiohttp==3.14.5 (from -r worker.lock (line 4))
  Downloading aiohttp-3.14.5-cp311-cp311-manylinux_2_17_x86_64.whl (1.7 MB)
Collecting six==1.17.0 (from -r worker.lock (line 9))
  Using cached six-1.17.0-py2.py3-none-any.whl (11 kB)
"""


def test_before_the_first_download_pip_is_said_to_ask_the_index() -> None:
    assert progress_of("", pins=65, installed=0) == (0, 65, "asking the package index")


def test_downloads_are_counted_and_the_last_is_named() -> None:
    assert progress_of(DOWNLOADING, pins=65, installed=0) == (2, 65, "downloading six (11 kB)")


def test_a_package_without_a_wheel_is_said_to_be_built() -> None:
    log = DOWNLOADING + "Building wheels for collected packages: pyspark\n"
    assert progress_of(log, pins=2, installed=0) == (2, 2, "building pyspark")


def test_installing_is_counted_by_what_is_there() -> None:
    log = DOWNLOADING + "Installing collected packages: six, aiohttp\n"
    assert progress_of(log, pins=65, installed=1) == (1, 2, "installing")


@pytest.mark.parametrize(
    ("log", "problem", "fix"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full", "free about 1 GB"),
        ("Error: Command '-m ensurepip' failed. ensurepip is not available.", "no venv module", "python3-venv"),
        ("/usr/bin/python3: No module named venv", "no venv module", "python3-venv"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "refused", "cache purge"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate", "global.cert"),
        ("ERROR: No matching distribution found for rocksdict==0.3.29", "no build", "python3.12 dev.py"),
        ("error: subprocess-exited-with-error", "could not be compiled", "python3.12 dev.py"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "may not be written", "writable"),
    ],
)
def test_a_known_failure_names_its_cause_and_its_fix(log: str, problem: str, fix: str) -> None:
    said, advice = diagnose(f"Collecting six\n{log}\n", GIGABYTE)
    assert problem in said
    assert fix in advice


def test_a_dead_network_is_named_before_the_missing_package_it_causes() -> None:
    log = (
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...)'\n"
        "ERROR: Could not find a version that satisfies the requirement six==1.17.0\n"
        "ERROR: No matching distribution found for six==1.17.0\n"
    )
    assert diagnose(log, GIGABYTE)[0] == "the package index cannot be reached"


def test_an_unknown_failure_is_quoted() -> None:
    assert diagnose("Collecting six\nERROR: the moon is full\n\n", GIGABYTE)[0] == "ERROR: the moon is full"


def test_silence_is_said_to_be_silence() -> None:
    assert diagnose("", GIGABYTE)[0] == "it failed without any output"


def test_a_full_disk_is_named_even_when_the_log_had_no_room_either() -> None:
    assert diagnose("", free_bytes=4096)[0] == "the disk is full"

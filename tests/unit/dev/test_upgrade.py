"""What becomes of each file in an upgrade, and what stops one: a template of a few files, and clones of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.dev import nouns, whose
from shared.dev.git import check_merges
from shared.dev.record import FILE, recorded, remember, version_of
from shared.dev.stages import StageFailed
from shared.dev.trees import Merged, Trees, apart, possible
from shared.dev.upgrade import Upgrade, asked, upgrade
from shared.topology import topics

ROOT = Path(__file__).parents[3]
RECORD = """release = "{}" # so far

[paths]
yours = ["README.md", "services", "tests/SERVICE"]
both = ["onefold.toml"]
"""
LINES = "".join(f"{number}\n" for number in range(1, 10))
FIRST = {
    "README.md": "# Theirs\n",
    "bench/old.py": f"old\n{LINES}",
    "docs/CHANGELOG.md": "# Changes\n\n## v1.0.0\n\n- first\n",
    "picture.png": "\0first",
    "requirements/dev.lock": LINES,
    "shared/a.py": LINES,
    "shared/b.py": "b\n",
    "shared/c.py": "c\n",
    "services/accounts/__init__.py": "",
    "tests/accounts/test.py": "test\n",
}
SECOND = {
    **FIRST,
    "bench/new.py": "new\n",
    "bench/old.py": f"old\n{LINES}10\n",
    "docs/CHANGELOG.md": "# Changes\n\n## v1.1.0\n\n- second\n\n## v1.0.0\n\n- first\n",
    "picture.png": "\0second",
    "requirements/dev.lock": f"{LINES}10\n",
    "shared/a.py": f"{LINES}10\n",
}
del SECOND["shared/c.py"]


@pytest.fixture(autouse=True)
def _who_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "x@example.org")


def git(folder: Path, *arguments: str | Path) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all of it")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    git(folder, "init", "-q", "-b", "main", ".")
    for tag, files in (("v1.0.0", FIRST), ("v1.1.0", SECOND)):
        git(folder, "rm", "-rfq", "--ignore-unmatch", ".")
        write(folder, {**files, FILE: RECORD.format("v1.0.0")})  # whatever it says in there, the tag counts
        git(folder, "add", "-A")
        git(folder, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", tag)
        git(folder, "tag", tag)
    git(folder, "tag", "v0.9.0")
    git(folder, "tag", "v2.0.0-rc1")
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Of the first release, without history."""
    folder = tmp_path / "clone"
    write(folder, {**FIRST, FILE: RECORD.format("v1.0.0")})
    git(folder, "init", "-q", "-b", "main", ".")
    commit(folder)
    return folder


def released(template: Path, folder: Path, files: Mapping[str, str], *deleted: str) -> Path:
    """A template with one more release, v1.2.0."""
    git(template.parent, "clone", "-q", template, folder)
    for path in deleted:
        (folder / path).unlink()
    write(folder, files)
    commit(folder)
    git(folder, "tag", "v1.2.0")
    return folder


def upgraded(clone: Path, template: Path, edits: Mapping[str, str] | None = None) -> Upgrade:
    """Commits the edits, upgrades and switches to the branch."""
    write(clone, edits or {})
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "--allow-empty", "-m", "ours")
    done = upgrade(clone, None, str(template))
    git(clone, "switch", "-q", done.branch)
    return done


def test_what_one_side_has_changed_and_what_both_have_apart_is_merged(clone: Path, template: Path) -> None:
    done = upgraded(clone, template, {"README.md": "# Ours\n", "shared/a.py": f"0\n{LINES}", "shared/ours.py": "1\n"})
    assert (done.tag, done.branch, done.conflicts, done.notes) == ("v1.1.0", "upgrade/v1.1.0", (), ())
    assert (clone / "README.md").read_text() == "# Ours\n"
    assert (clone / "shared" / "a.py").read_text() == f"0\n{LINES}10\n"
    assert (clone / "shared" / "ours.py").exists()
    assert not (clone / "shared" / "c.py").exists()
    assert recorded(clone).release == "v1.1.0"


def test_what_both_have_changed_has_marks_around_those_lines_alone(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COUNT", "1"), ("KEY_0", "merge.conflictStyle"), ("VALUE_0", "zdiff3")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    done = upgraded(clone, template, {"shared/a.py": f"0\n{LINES}ours\n"})
    assert done.conflicts == ("shared/a.py: you have changed lines that v1.1.0 has changed, too",)
    marked = "<<<<<<< yours\nours\n=======\n10\n>>>>>>> v1.1.0\n"
    assert (clone / "shared" / "a.py").read_text() == f"0\n{LINES}{marked}"
    assert "          resolve the conflicts, then git commit -a --amend --no-edit" in [*done.lines()]


def test_what_one_side_has_deleted_is_told(clone: Path, template: Path) -> None:
    (clone / "shared" / "a.py").unlink()
    done = upgraded(clone, template, {"shared/c.py": "ours\n"})
    assert done.conflicts == ("shared/c.py: you have changed it, and v1.1.0 has deleted it; it stays",)
    assert done.notes == ("shared/a.py stays deleted; v1.1.0 changes it",)
    assert not (clone / "shared" / "a.py").exists()
    assert (clone / "shared" / "c.py").read_text() == "ours\n"


def test_a_folder_that_the_team_has_deleted_does_not_come_back(clone: Path, template: Path) -> None:
    (clone / "bench" / "old.py").unlink()
    done = upgraded(clone, template)
    assert git(clone, "ls-files", "bench") == ""
    assert done.notes == (
        "bench/old.py stays deleted; v1.1.0 changes it",
        "bench/new.py is left out: it is new, in a folder that you deleted",
    )


def test_a_folder_that_the_team_has_renamed_gets_the_fixes(clone: Path, template: Path) -> None:
    git(clone, "mv", "shared/a.py", "shared/renamed.py")
    assert upgraded(clone, template).conflicts == ()
    assert (clone / "shared" / "renamed.py").read_text() == f"{LINES}10\n"
    assert not (clone / "shared" / "a.py").exists()


def test_an_edit_is_in_the_file_that_a_release_has_moved_into_a_deleted_folder(
    clone: Path, template: Path, tmp_path: Path
) -> None:
    later = released(template, tmp_path / "later", {"bench/a.py": f"{LINES}10\n"}, "shared/a.py")
    (clone / "bench" / "old.py").unlink()
    done = upgraded(clone, later, {"shared/a.py": f"ours\n{LINES}"})
    assert (clone / "bench" / "a.py").read_text() == f"ours\n{LINES}10\n"
    assert "bench/new.py is left out: it is new, in a folder that you deleted" in done.notes


def test_what_is_new_in_a_folder_that_the_team_has_moved_is_told(clone: Path, template: Path, tmp_path: Path) -> None:
    later = released(template, tmp_path / "later", {"bench/old.py": f"import new\nold\n{LINES}10\n"})
    git(clone, "mv", "bench", "measured")
    done = upgraded(clone, later)
    assert (clone / "measured" / "old.py").read_text() == f"import new\nold\n{LINES}10\n"
    assert (clone / "bench" / "new.py").exists()
    assert done.notes == ("bench/new.py is new, in a folder that you moved: move it, too",)


def test_a_file_that_both_have_renamed_is_told_by_both_names(clone: Path, template: Path, tmp_path: Path) -> None:
    later = released(template, tmp_path / "later", {"shared/theirs.py": f"{LINES}10\n"}, "shared/a.py")
    git(clone, "mv", "shared/a.py", "shared/ours.py")
    said = "you call it shared/ours.py, and v1.2.0 calls it shared/theirs.py; both are there: keep one"
    assert upgraded(clone, later).conflicts == (f"shared/a.py: {said}",)
    assert (clone / "shared" / "ours.py").exists()
    assert (clone / "shared" / "theirs.py").exists()


def test_a_deleted_file_that_the_release_has_renamed_is_told_by_the_name_it_had(
    clone: Path, template: Path, tmp_path: Path
) -> None:
    later = released(template, tmp_path / "later", {"shared/z.py": f"{LINES}10\n"}, "shared/a.py")
    (clone / "shared" / "a.py").unlink()
    assert upgraded(clone, later).notes == ("shared/a.py stays deleted; v1.2.0 calls it shared/z.py",)
    assert not (clone / "shared" / "z.py").exists()


def test_a_picture_that_both_have_changed_stays_the_teams(clone: Path, template: Path) -> None:
    done = upgraded(clone, template, {"picture.png": "\0ours"})
    assert done.conflicts == ("picture.png: you have changed it, and so has v1.1.0; yours stays",)
    assert (clone / "picture.png").read_text() == "\0ours"


@pytest.mark.parametrize(
    ("ours", "becomes"), [(f"{LINES}ours\n", f"{LINES}10\n"), (f"ours\n{LINES}", f"ours\n{LINES}10\n")]
)
def test_lock_files_are_never_in_conflict_but_resolved_again(
    ours: str, becomes: str, clone: Path, template: Path
) -> None:
    done = upgraded(clone, template, {"requirements/dev.lock": ours})
    assert (done.conflicts, done.relock) == ((), True)
    assert (clone / "requirements" / "dev.lock").read_text() == becomes


def test_a_lock_file_that_the_team_has_deleted_stays_deleted(clone: Path, template: Path) -> None:
    (clone / "requirements" / "dev.lock").unlink()
    done = upgraded(clone, template)
    assert (done.notes, done.relock) == (("requirements/dev.lock stays deleted; v1.1.0 changes it",), False)
    assert not (clone / "requirements" / "dev.lock").exists()


def test_other_files_beside_lock_files_are_the_teams_like_any(clone: Path, template: Path, tmp_path: Path) -> None:
    later = released(template, tmp_path / "later", {"requirements/notes.md": "theirs\n"})
    done = upgraded(clone, later, {"requirements/notes.md": "ours\n"})
    assert len(done.conflicts) == 1
    assert "ours\n" in (clone / "requirements" / "notes.md").read_text()


def test_a_clone_that_has_edited_nothing_has_nothing_to_do(clone: Path, template: Path) -> None:
    done = upgraded(clone, template)
    assert not done.relock
    assert [*done.lines()] == [
        "## v1.1.0\n\n- second\n",
        "branch    upgrade/v1.1.0: v1.1.0 and all of yours; 8 files change",
        "next      git switch upgrade/v1.1.0",
        "          python3 dev.py check, then merge the branch",
    ]


def test_a_clone_may_be_a_folder_of_a_larger_repository(tmp_path: Path, template: Path) -> None:
    folder = tmp_path / "all" / "of" / "it"
    write(folder, {**FIRST, FILE: RECORD.format("v1.0.0")})
    write(tmp_path / "all", {"beside.txt": "1\n"})
    git(tmp_path / "all", "init", "-q", ".")
    commit(tmp_path / "all")
    upgraded(folder, template, {"README.md": "# Ours\n"})
    assert (folder / "shared" / "a.py").read_text() == f"{LINES}10\n"
    assert (folder / "README.md").read_text() == "# Ours\n"
    assert git(tmp_path / "all", "ls-files", "--", ":(exclude)of") == "beside.txt"


@pytest.mark.parametrize("how", [["--depth=1"], ["--filter=blob:none"], ["--filter=blob:none", "--sparse"]])
@pytest.mark.parametrize("folder", [".", "of/it"])
def test_a_clone_may_lack_history_and_files(how: list[str], folder: str, tmp_path: Path, template: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    write(whole / folder, {**FIRST, FILE: RECORD.format("v1.0.0")})
    git(whole, "init", "-q", ".")
    git(whole, "config", "uploadpack.allowFilter", "true")
    for number in range(3):
        write(whole / folder, {"README.md": f"{number}\n"})
        commit(whole)
    git(tmp_path, "clone", "-q", *how, whole.as_uri(), part)
    (part / folder).mkdir(parents=True, exist_ok=True)
    if "--sparse" in how:
        git(part, "sparse-checkout", "add", f"{folder}/shared")
        write(part / folder, {FILE: RECORD.format("v1.0.0")})
    assert upgrade(part / folder, None, str(template)).conflicts == ()
    git(part, "switch", "-q", "upgrade/v1.1.0")
    assert (part / folder / "shared" / "a.py").read_text() == f"{LINES}10\n"


def test_what_git_does_not_know_is_in_nobodys_way(clone: Path, template: Path) -> None:
    write(clone, {"notes.txt": "mine\n"})
    assert upgrade(clone, None, str(template)).conflicts == ()
    assert (clone / "notes.txt").read_text() == "mine\n"


def test_a_clone_that_names_objects_otherwise_is_told_before_anything_is_done(tmp_path: Path, template: Path) -> None:
    folder = tmp_path / "clone"
    write(folder, {**FIRST, FILE: RECORD.format("v1.0.0")})
    git(folder, "init", "-q", "--object-format=sha256", ".")
    commit(folder)
    with pytest.raises(StageFailed, match=r"git fetch: .*sha256"):
        upgrade(folder, None, str(template))


def test_a_release_without_a_line_for_it_is_refused(clone: Path, template: Path, tmp_path: Path) -> None:
    later = released(template, tmp_path / "later", {FILE: "release = 'v1.2.0'\n"})
    with pytest.raises(StageFailed, match=r"v1\.2\.0 has no line `release"):
        upgrade(clone, None, str(later))


def test_a_branch_gets_one_commit_and_the_clone_no_tag_and_no_history(clone: Path, template: Path) -> None:
    upgraded(clone, template)
    assert git(clone, "rev-list", "--count", "main..HEAD") == "1"
    assert git(clone, "tag") == ""
    assert git(clone, "remote") == ""
    assert git(clone, "config", "onefold.template") == str(template)


def test_what_is_committed_meanwhile_is_not_undone(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = Trees.merge

    def commits_first(trees: Trees, base: str, new: str, ours: str, tag: str) -> Merged:
        write(clone, {"shared/mine.py": "mine\n"})
        commit(clone)
        return merge(trees, base, new, ours, tag)

    monkeypatch.setattr(Trees, "merge", commits_first)
    done = upgrade(clone, None, str(template))
    git(clone, "merge", "-q", "-m", "both", done.branch)
    assert (clone / "shared" / "mine.py").read_text() == "mine\n"
    assert (clone / "shared" / "a.py").read_text() == f"{LINES}10\n"


def test_two_upgrades_at_once_write_each_its_own_branch(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    later = released(template, tmp_path / "later", {"shared/later.py": "1\n"})
    keep, both = Trees.keep, ["v1.1.0"]

    def is_overtaken(trees: Trees, tree: str, ref: str) -> None:
        keep(trees, tree, ref)
        if "merged" in ref and both:
            upgrade(clone, both.pop(), str(later))

    monkeypatch.setattr(Trees, "keep", is_overtaken)
    upgrade(clone, "v1.2.0", str(later))
    assert git(clone, "diff", "--name-only", "upgrade/v1.1.0", "upgrade/v1.2.0").split() == [FILE, "shared/later.py"]


def test_an_upgrade_that_could_not_commit_leaves_nothing(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "")
    with pytest.raises(StageFailed, match="git commit-tree: "):
        upgrade(clone, None, str(template))
    assert git(clone, "for-each-ref", "refs/onefold/merged", "refs/heads/upgrade") == ""


def test_the_next_upgrade_begins_where_the_last_one_ended(clone: Path, template: Path, tmp_path: Path) -> None:
    upgraded(clone, template, {"shared/a.py": f"0\n{LINES}"})
    git(clone, "switch", "-q", "main")
    git(clone, "merge", "-q", "upgrade/v1.1.0")
    with pytest.raises(StageFailed, match=r"this clone is at v1\.1\.0; there are v0\.9\.0, v1\.0\.0, v1\.1\.0"):
        upgrade(clone, None, None)
    git(tmp_path, "clone", "-q", template, "later")
    write(tmp_path / "later", {"shared/a.py": f"{LINES}10\n11\n"})
    commit(tmp_path / "later")
    git(tmp_path / "later", "tag", "v1.10.0")
    assert upgraded(clone, tmp_path / "later").tag == "v1.10.0"
    assert (clone / "shared" / "a.py").read_text() == f"0\n{LINES}10\n11\n"


def test_what_stops_an_upgrade_says_what_to_do(clone: Path, template: Path, tmp_path: Path) -> None:
    def refused(tag: str | None = None, source: Path | None = template) -> str:
        with pytest.raises(StageFailed) as failure:
            upgrade(clone, tag, str(source) if source else None)
        return str(failure.value)

    assert "fix: name it once: --from PATH-OR-URL" in refused(source=None)
    assert "git ls-remote" in refused(source=tmp_path / "nothing")
    assert "has no v1.2.0\n  fix: name one of: v0.9.0, v1.0.0, v1.1.0" in refused("v1.2.0")
    assert "this clone is at v1.0.0" in refused("v0.9.0")
    assert "newest is not a release" in refused("newest")
    assert git(clone, "branch", "--list", "upgrade/*") == ""
    git(clone, "branch", "upgrade/v1.1.0")
    assert "fix: merge it, or `git branch -D upgrade/v1.1.0`" in refused()
    write(clone, {"README.md": "# Not committed\n"})
    assert "not committed: README.md\n  fix: commit them" in refused()
    git(clone, "restore", ".")
    git(clone, "branch", "-m", "upgrade/v1.1.0", "elsewhere")
    git(clone, "branch", "upgrade")
    assert "there is a branch upgrade\n" in refused()
    write(clone, {FILE: "release = 1\n[paths]\nyours = []\nboth = []\n"})
    commit(clone)
    assert f"{FILE} does not say what this clone began with" in refused()
    write(clone, {FILE: RECORD.format("v1.0.9")})
    commit(clone)
    assert "has no v1.0.9, which this clone began with" in refused()
    (clone / FILE).unlink()
    commit(clone)
    assert f"{FILE} does not say what this clone began with" in refused()


def test_an_error_of_git_says_what_it_was_to_do(clone: Path, tmp_path: Path) -> None:
    with apart(clone) as trees, pytest.raises(StageFailed, match=r"  git fetch: fatal: "):
        trees.fetch(str(tmp_path / "nothing"), "v1.0.0")
    with apart(clone) as trees, pytest.raises(StageFailed, match=r"  git ls-tree: fatal: "):
        trees.files("nothing")


@pytest.mark.parametrize("version", ["git version 2.37.6", "git version 1.99", "what?"])
def test_a_git_that_cannot_merge_trees_is_told(version: str) -> None:
    with pytest.raises(StageFailed, match=r"cannot merge trees\n  fix: install git 2\.38 or newer"):
        check_merges(version)


@pytest.mark.parametrize("version", ["git version 2.38.0", "git version 2.39.5 (Apple Git-154)", "git version 3.0"])
def test_a_git_that_can_merge_trees_is_taken(version: str) -> None:
    check_merges(version)


def test_a_copy_is_made_in_both_releases_or_in_none() -> None:
    steps = [
        {"verb": "new-service", "name": "vouchers", "like": "accounts"},
        {"verb": "new-service", "name": "trends", "like": "views"},
        {"verb": "new-service", "name": "coupons", "like": "vouchers"},
        {"verb": "new-service", "name": "fashions", "like": "trends"},
        {"verb": "clear"},
    ]
    done, skipped = possible(steps, {"accounts"})
    assert (done, skipped) == ([steps[0], steps[2], steps[4]], [steps[1], steps[3]])


def test_what_is_done_again_needs_no_package() -> None:
    """A clone has the packages of its own release, whatever a later one asks for."""
    lines = ("import sys", "before = {*sys.modules}", "import shared.dev.replay", "print(*{*sys.modules} - before)")
    run = subprocess.run(
        [sys.executable, "-P", "-c", "\n".join(lines)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    imported = {name.partition(".")[0] for name in run.stdout.split()}
    assert "shared" in imported, run.stderr
    assert imported - {"shared", *sys.stdlib_module_names} == set()
    assert nouns.ENGINE_TABLES == topics.ENGINE_TABLES


def test_what_was_done_is_remembered_in_its_order(clone: Path) -> None:
    remember(clone, "new-service", name="vouchers", like="accounts", singular=None)
    remember(clone, "new-service", name="bills", like="vouchers", singular='"b"')
    record = recorded(clone)
    assert (record.release, [*record.steps]) == (
        "v1.0.0",
        [
            {"verb": "new-service", "name": "vouchers", "like": "accounts"},
            {"verb": "new-service", "name": "bills", "like": "vouchers", "singular": '"b"'},
        ],
    )


def test_only_releases_since_and_up_to_the_one_that_was_asked_for_are_told() -> None:
    page = "# Changes\n\n## v1.10.0\n\nten\n\n## v1.2.0\n\ntwo\n\n## v1.1.0\n\none\n\n## v1.0.0\n\nnone\n"
    assert asked(page, "v1.0.0", "v1.2.0") == "## v1.2.0\n\ntwo\n\n## v1.1.0\n\none"
    assert asked(page, "v1.2.0", "v1.10.0") == "## v1.10.0\n\nten"
    assert version_of("v1.10.0") > version_of("v1.9.9")


def test_the_templates_files_that_a_team_has_edited_are_told(clone: Path, template: Path) -> None:
    with pytest.raises(StageFailed, match=r"does not have v1\.0\.0.*\n  fix: python3 dev\.py whose --from"):
        whose.edited(clone)
    whose.fetch(clone, str(template))
    assert whose.edited(clone) == []
    edits = {"shared/b.py": "ours\n", "README.md": "# Ours\n", "services/accounts/x.py": "1\n", "shared/x.py": "1\n"}
    write(clone, {**edits, "tests/accounts/test.py": "ours\n"})
    (clone / "bench" / "old.py").unlink()
    commit(clone)
    assert whose.edited(clone) == ["shared/b.py"]
    assert upgraded(clone, template).conflicts == ()
    assert whose.edited(clone) == ["shared/b.py"]
    git(clone, "switch", "-q", "main")
    assert whose.edited(clone) == ["shared/b.py"]


def test_a_tag_of_the_teams_own_is_not_the_templates(clone: Path, template: Path) -> None:
    write(clone, {"shared/b.py": "ours\n"})
    commit(clone)
    git(clone, "tag", "v1.0.0")
    with pytest.raises(StageFailed, match=r"does not have v1\.0\.0"):
        whose.edited(clone)
    whose.fetch(clone, str(template))
    assert whose.edited(clone) == ["shared/b.py"]
    assert git(clone, "rev-parse", "v1.0.0") == git(clone, "rev-parse", "main")


def test_whose_passes_over_copies_of_a_service_that_the_template_does_not_have(clone: Path, template: Path) -> None:
    remember(clone, "new-service", name="coupons", like="handmade")
    upgraded(clone, template)
    assert whose.edited(clone) == []


def test_a_remote_of_the_teams_stays_and_a_wrong_source_is_not_remembered(clone: Path, template: Path) -> None:
    git(clone, "remote", "add", "onefold", "https://git.example/team/onefold.git")
    upgraded(clone, template)
    git(clone, "switch", "-q", "main")
    git(clone, "branch", "-D", "upgrade/v1.1.0")
    with pytest.raises(StageFailed, match=r"has no v1\.0\.0"):
        upgrade(clone, None, str(clone))
    assert upgrade(clone, None, None).tag == "v1.1.0"
    assert git(clone, "remote", "get-url", "onefold") == "https://git.example/team/onefold.git"


def test_a_source_may_be_a_bundle_beside_the_clone(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(template, "bundle", "create", "-q", clone.parent / "template.bundle", "--all")
    monkeypatch.chdir(clone)
    assert upgrade(clone, None, "../template.bundle").conflicts == ()


def test_a_token_in_a_source_is_not_shown(
    clone: Path, template: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("COUNT", "1"), ("KEY_0", f"url.{template.as_uri()}.insteadOf")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", source := "https://bot:SECRET@template.example/x.git")
    upgrade(clone, None, source)
    with pytest.raises(StageFailed) as failure:
        upgrade(clone, "v1.2.0", source)
    said = capsys.readouterr().err + str(failure.value)
    assert "from https://template.example/x.git" in said
    assert "SECRET" not in said

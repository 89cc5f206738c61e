from __future__ import annotations

import io
import re

import pytest

from shared.dev.stages import Stage, StageFailed, stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stage_is_one_line_with_its_time() -> None:
    out = io.StringIO()
    with stage("[2/5]", "packages", out) as now:
        now.done = "62 wheels installed"
    assert re.fullmatch(r"\[2/5\] packages   62 wheels installed \(\d+\.\d s\)\n", out.getvalue())


@pytest.mark.parametrize(("error", "word"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_a_stage_that_ends_early_says_so_and_passes_the_error_on(error: type[BaseException], word: str) -> None:
    out = io.StringIO()
    with pytest.raises(error), stage("[1/1]", "venv", out):
        raise error
    assert out.getvalue().startswith(f"[1/1] venv       {word} (")


def test_a_terminal_sees_a_bar_that_the_result_replaces() -> None:
    out = Terminal()
    with stage("[1/1]", "packages", out) as now:
        now.progress(6, 12, "installing")
    begun, drawn, result = out.getvalue().split("\r\x1b[K")
    assert begun == "[1/1] packages   …"
    assert drawn.startswith("[1/1] packages   ████████████░░░░░░░░░░░░ 6/12 installing")
    assert result.startswith("[1/1] packages   done (")


def test_elsewhere_progress_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    now = Stage("[1/1] packages ", out)
    now.progress(1, 12, "installing")
    assert out.getvalue() == ""
    now._said -= 11
    now.progress(2, 12, "installing")
    assert out.getvalue().startswith("[1/1] packages 2/12 installing (")


def test_a_failure_names_the_log_and_the_fix() -> None:
    failure = StageFailed("the disk is full", "free some space", "/clone/.onefold/logs/venv.log")
    assert str(failure) == "  the disk is full\n  log: /clone/.onefold/logs/venv.log\n  fix: free some space"

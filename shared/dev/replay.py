"""Does to the checkout that it lies in what was done to a clone: `python -P -m shared.dev.replay STEPS`, as JSON.

`upgrade` runs it in trees of other releases, on the packages of the clone: every later release understands these steps,
and imports nothing for them that a clone of an earlier one has not installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shared.dev import new_project, remove_demo
from shared.dev.patterns import Foreign
from shared.dev.record import Step
from shared.dev.rename import rename_again
from shared.dev.scaffold import new_of_kind, new_service
from shared.dev.stages import StageFailed
from shared.runtime.checkout import CHECKOUT


def redo(root: Path, step: Step) -> None:
    """Raises StageFailed when it can't be done."""
    match step:
        case {"verb": "new-service", "name": name, "like": like}:
            new_service(root, name, like, step.get("singular"), again=True)
        case {"verb": "new-service", "name": name, "kind": kind, "on": event, "topic": topic}:
            told = Foreign(event, topic, step.get("partitions"))
            new_of_kind(root, name, kind, told, step.get("singular"), again=True)
        case {"verb": "new-service", "name": name, "kind": kind}:
            new_of_kind(root, name, kind, singular=step.get("singular"), again=True)
        case {"verb": "new-project", "name": name}:
            new_project.begin(root, name)
        case {"verb": "rename", "name": name}:
            rename_again(root, name)
        case {"verb": "remove-demo", "all": _}:
            new_project.remove_examples(root, remove_demo.planned(root, new_project.EXAMPLE))
        case {"verb": "remove-demo"}:
            remove_demo.carry_out(remove_demo.planned(root))
        case _:
            raise StageFailed(f"this release does not know how to do {dict(step)}", "name a later one")


def main(steps: str) -> None:
    for step in json.loads(steps):
        redo(CHECKOUT, step)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except StageFailed as failure:
        sys.exit(failure.problem)

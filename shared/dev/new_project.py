"""`new-project`: a project of a team's own, without an example. Its first commit is the team's, and `upgrade` knows it.

Beside what `remove-demo` removes, accounts goes, and each test that needs it; the engine stays, with its own.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from shared.dev.additions import forget
from shared.dev.git import check_clean, git
from shared.dev.record import recorded, remember
from shared.dev.remove_demo import Plan, carry_out, planned
from shared.dev.stages import StageFailed
from shared.dev.template import remember_source

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_EXAMPLE = "accounts"
EXAMPLE = (
    "services/accounts",
    "tests/unit/accounts",
    *("tests/scaffold/test_rename.py", "tests/scaffold/test_upgrade.py", "tests/sinks/test_cli.py"),  # they name it
)
_COMPOSED = "compose.cluster.yml", "compose.secure.yml", "docker-compose.yml"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_README = """\
# {name}

Event-sourced services on Apache Kafka, from the template [Onefold](docs/architecture.md).

```sh
python3 dev.py new-service NAME --kind aggregate
python3 dev.py up
python3 dev.py check
python3 dev.py test
```

| | |
|---|---|
| [add a service](docs/tutorials/add-a-service.md) | from its first event to its first request |
| [change it while it runs](docs/tutorials/changing-a-running-service.md) | by rolling, or by its next version |
| [operations](docs/operations.md), [deployment](docs/deployment.md) | what runs where, and what to do when |
| [contributing](docs/contributing.md) | how code, tests and pages are written here |
| [upgrading](docs/upgrading.md) | what is yours, and how fixes of the template reach you |

The example of most pages is `accounts`, as in the [tests' own](tests/accounts); say a service of yours in its place.
"""


def new_project(root: Path, folder: Path, name: str) -> str:
    """Makes the project of what is committed here, whole or not at all. Returns the release that it begins with.

    folder: new, and absolute. Raises StageFailed.
    """
    if not _NAME.fullmatch(name):
        raise StageFailed(f"{name!r} is not a name for a project", "use lower-case letters, digits and -")
    if folder.exists():
        raise StageFailed(f"{folder} exists", "name a new folder")
    if folder.is_relative_to(root):
        raise StageFailed(f"{folder} is in {root}, which would no longer be clean", "name a folder elsewhere")
    check_clean(root)
    if git(root, "rev-parse", "--show-prefix"):
        raise StageFailed(f"{root} is a folder of a larger repository", "clone the template, and run it there")
    try:
        git(root, "checkout-index", "-a", "-q", f"--prefix={folder}/")  # neither history nor remotes
        begin(folder, name)
        remember(folder, "new-project", name=name)
        _commit(folder, f"Begin {name}")
        remember_source(folder, str(root))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return recorded(folder).release


def begin(root: Path, name: str) -> None:
    """Makes a checkout of the template a project with no service. `upgrade` does it again in other releases."""
    remove_examples(root, planned(root, EXAMPLE))
    (root / "README.md").write_text(_README.format(name=name))
    for file in _COMPOSED:
        path = root / file
        path.write_text(path.read_text().replace("\nname: onefold", f"\nname: {name}", 1))


def remove_examples(root: Path, plan: Plan) -> None:
    """As planned, accounts among it, with its lines in the lists and the links to it."""
    carry_out(plan)
    forget(root, _EXAMPLE)
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        page.write_text(_without_dead_links(page))


def _without_dead_links(page: Path) -> str:
    """Their words stay."""
    return _LINK.sub(lambda link: link[0 if (page.parent / link[2]).exists() else 1], page.read_text())


def _commit(folder: Path, message: str) -> None:
    git(folder, "init", "-q", "-b", "main", ".")
    git(folder, "add", "-A", "--force")  # whatever the user's own settings ignore, such as vendor/ and *.lock
    git(folder, "commit", "-q", "-m", message)

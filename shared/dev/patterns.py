"""The patterns that `new-service --kind` copies: small services below tests/patterns, where they are tested.

Two of them are told of a thing of another service: the copy is told of an event that its maker names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.dev.nouns import Noun
from shared.dev.stages import StageFailed
from shared.runtime.checkout import found_services

FOLDER = "tests/patterns"
PACKAGE = "tests.patterns."
PATTERNS = {
    "aggregate": Noun("things", "thing"),
    "process": Noun("followups", "followup"),
    "projection": Noun("tallies", None),
    "claim": Noun("nicknames", "nickname"),
    "effect": Noun("errands", "errand"),
}
_OF_OTHERS = ("process", "projection")


@dataclass(frozen=True, slots=True)
class Foreign:
    """event: the TYPE of another service's event, such as booking.placed. topic: where it is written, in as many
    partitions; None: as many as any.
    """

    event: str
    topic: str
    partitions: str | None = None

    @property
    def words(self) -> dict[str, str]:
        """What the copy says of it, by what the pattern says. The longest first, as a part is a word, too."""
        whole = {"thing.created": self.event, "thing_created": self.event.replace(".", "_")}
        return whole | {"things": self.topic.partition(".")[0], "thing": self.event.partition(".")[0]}

    def partitioned(self, topology: str) -> str:
        """A pattern's topology.py, with as many partitions as the topic has: those of a reader are the same."""
        number = f", partitions={self.partitions})" if self.partitions else ")"
        return re.sub(r"^(TOPOLOGY = .*)\)$", rf"\1{number}", topology, flags=re.MULTILINE)


def placed(path: str, pattern: str) -> str:
    """Where a file of the pattern is in a copy, but for its name."""
    service, tests = path.replace(f"{FOLDER}/", "services/"), f"{FOLDER}/{pattern}/unit/"
    return path.replace(tests, f"tests/unit/{pattern}/") if path.startswith(tests) else service


def foreign(root: Path, kind: str, event: str | None) -> Foreign | None:
    """What a copy of this kind is told. Raises StageFailed unless there is such an event, at its first version."""
    if kind not in _OF_OTHERS:
        if event is not None:
            raise StageFailed(f"a new {kind} is told of no other service's event", "leave out --on")
        return None
    found = {name: service for service in found_services(root) for name in _events(root / "services" / service)}
    if event not in found:
        which = f"there is no event {event}" if event else f"a {kind} is told of another service's event"
        fix = f"--on one of: {', '.join(found)}" if found else "make that service first, with --kind aggregate"
        raise StageFailed(which, fix)
    return _declared(event, found[event], (root / "services" / found[event] / "topology.py").read_text())


def _events(service: Path) -> Iterator[str]:
    """Those that have had one version only: a reader of others needs their upcasters."""
    module = service / "domain" / "events.py"
    decides = (service / "domain" / "commands.py").exists()  # else the events are others' results
    for node in ast.parse(module.read_text() if decides and module.exists() else "").body:
        said = {ast.unparse(each.targets[0]): each.value for each in _assigned(node)}
        if isinstance(type_ := said.get("TYPE"), ast.Constant) and "VERSION" not in said:
            yield str(type_.value)


def _assigned(node: ast.stmt) -> list[ast.Assign]:
    return [each for each in node.body if isinstance(each, ast.Assign)] if isinstance(node, ast.ClassDef) else []


def _declared(event: str, service: str, topology: str) -> Foreign:
    topic = re.search(rf'"({service}\.events\.v\d+)"', topology)
    partitions = re.search(r"\bpartitions=(\d+)", topology)
    return Foreign(event, topic[1] if topic else f"{service}.events.v1", partitions[1] if partitions else None)

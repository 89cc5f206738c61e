"""`doctor`: what is wrong with the system, and what mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from shared.dev.asking import ask
from shared.dev.dead_letters import letters_of
from shared.dev.stages import StageFailed
from shared.doctor.examine import examine
from shared.doctor.finding import Finding
from shared.doctor.look import look
from shared.doctor.machines import Capacity, capacities
from shared.doctor.snapshot import Outstanding, Told
from shared.http.client import path_of
from shared.http.cluster import Cluster
from shared.http.dead_letters import DeadLetter
from shared.runtime.checkout import found_services
from shared.runtime.declared import declared_by
from shared.runtime.settings import Settings
from shared.topology.topics import Topology

_LISTED = 100
_AGED = 5  # of those that are pending; each is a question


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """findings: the worst first. unseen: what could not be looked at, and why. capacities: by service, in JSON only."""

    findings: Sequence[Finding]
    unseen: Sequence[str]
    capacities: Sequence[Capacity] = ()

    @property
    def exit_code(self) -> int:
        """The severity of the worst finding; 1 if there is none, but not all was seen."""
        return max((int(each.severity) for each in self.findings), default=1 if self.unseen else 0)

    def lines(self) -> Iterator[str]:
        for each in self.findings:
            yield f"{each.severity.name}  {each.what}"
            yield f"    found  {each.evidence}"
            yield f"    why    {each.why}"
            yield f"    cure   {each.cure}"
        for text in self.unseen:
            yield f"unseen  {text}"

    def as_json(self) -> str:
        findings = [asdict(each) | {"severity": each.severity.name.lower()} for each in self.findings]
        capacity = [asdict(each) for each in self.capacities]
        found = {"findings": findings, "unseen": list(self.unseen), "capacity": capacity}
        return json.dumps(found, indent=2, ensure_ascii=False)


def diagnose(topologies: Sequence[Topology], workers: Mapping[str, Sequence[str]], settings: Settings) -> Diagnosis:
    """workers: their URLs, by service, as far as they are known. Raises as `look` does."""
    services = [each.service for each in topologies]
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(services, pool.map(lambda name: _told(name, workers.get(name, ())), services), strict=True))
    seen = look(topologies, settings, {name: told for name, (told, _) in answers.items() if told is not None})
    # without members, `look` knows that there is nobody to ask
    unseen = [why for each in topologies if (why := answers[each.service][1]) and seen.members[each.group]]
    return Diagnosis(examine(seen), unseen, list(capacities(seen)))


def _told(service: str, urls: Sequence[str]) -> tuple[Told | None, str]:
    """What the first worker that answers says; and what is not known of them, and why."""
    unseen = f"the workers of {service}: name one with --url {service}=URL"
    for url in urls:
        try:
            cluster = Cluster.model_validate(ask(f"{url}/cluster"))
            return _with_effects(service, *_with_letters(service, Told(url, cluster)))
        except StageFailed as failure:
            unseen = f"the workers of {service}: {failure.problem}; fix: {failure.fix}"
        except ValidationError:
            unseen = f"the workers of {service}: {url} answers what this release does not understand"
    return None, unseen


def _with_letters(service: str, told: Told) -> tuple[Told, str]:
    try:
        return told._replace(letters=[DeadLetter.model_validate(each) for each in letters_of(told.url)]), ""
    except StageFailed as failure:  # as while a partition is restored
        return told, f"what is parked in {service}: {failure.problem}; fix: {failure.fix}"


def _with_effects(service: str, told: Told, unseen: str) -> tuple[Told, str]:
    if service not in found_services(having="effects.py"):
        return told, unseen
    url = told.url + declared_by(service, "effects").path
    try:
        return told._replace(effects=list(_outstanding(url))), unseen
    except StageFailed as failure:
        return told, unseen or f"the effects of {service}: {failure.problem}; fix: {failure.fix}"


def _outstanding(url: str) -> Iterator[Outstanding]:
    """The first of each kind. Raises StageFailed."""
    for phase in ("given_up", "lost", "waiting", "pending"):
        for number, row in enumerate(ask(f"{url}?phase={phase}&limit={_LISTED}")["items"]):
            id_, aged = row["effect_id"], phase == "pending" and number < _AGED
            waits_s = _since_last_event(path_of(url, id_)) if aged else 0.0
            yield Outstanding(id_, phase, row["content"]["target"], row["attempt"], row["reason"] or "", waits_s)


def _since_last_event(url: str) -> float:
    *_, last = ask(f"{url}/events?limit={_LISTED}")["items"]
    return (datetime.now(UTC) - datetime.fromisoformat(last["occurred_at"])).total_seconds()

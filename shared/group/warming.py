"""A partition moves once its next owner has a warm copy of its rows; until then, who has one owns it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set


def owners(
    planned: Mapping[int, str], before: Mapping[str, Set[int]], warm: Mapping[str, Set[int]]
) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Who owns each partition, so that nobody restores one that another has; and who is to own it in the end.

    planned: who is to own each, balanced. before: what each member has owned so far. warm: the partitions of which each
    has a copy that is nearly up to date, where a restore of all would take long. Before and warm name the same members.
    """
    now, later = dict(planned), dict(planned)
    for number in sorted(planned):
        member = later[number]
        keepers = sorted(each for each in warm if number in warm[each])
        if not keepers or number in warm.get(member, ()):
            continue
        # what it has a warm copy of may be planned for a keeper
        swaps = (n for n in sorted(warm.get(member, ())) if n in later and now[n] == later[n] and later[n] in keepers)
        if (other := next(swaps, None)) is not None:
            keeper = later[other]
            now[number] = later[number] = keeper
            now[other] = later[other] = member
        else:
            now[number] = next((each for each in keepers if number in before[each]), keepers[0])
    return now, later

"""SQL over local times that guesses nothing: one that clocks skipped fails, as what cannot be computed does."""

from __future__ import annotations

import re
from typing import Any, Literal

from pyspark.sql import Column as AnyColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column

from shared.domain.errors import OnefoldError

Twice = Literal["earlier", "later"] | None
"""Which one a local time is that clocks showed twice; None: none of them, it fails, too."""

_OF_PARTS = re.compile("(try_)?make_timestamp(_ltz)?")
_OF_TEXT = {"timestamp", "to_timestamp", "to_timestamp_ltz", "try_to_timestamp"}
_NAMED_ZONE = r"[A-Za-z]{2}"
_NO_CLOCKS = r"[\d\s](Etc/)?(UTC|GMT|UT)([+-][\d:]*)?\s*$"
_LETTERS = re.compile("[vVz]")  # of a pattern


class GuessedZone(OnefoldError):
    """SQL that would choose one of two instants by itself.

    Operator action: write the expression as the message says.
    """


def sql(text: str, twice: Twice = None) -> Column:
    """The column of the expression. Raises GuessedZone."""
    parser = SparkSession.active()._jsparkSession.sessionState().sqlParser()
    return _column(_sure(parser.parseExpression(text), twice))


def sure_text(value: AnyColumn) -> AnyColumn:
    """The text of a time, which fails if it names its zone: the clocks of that may have skipped it."""
    text = value.cast("string")
    named = text.rlike(_NAMED_ZONE) & ~text.rlike(_NO_CLOCKS)
    return F.when(named, F.raise_error(F.lit("a zone's name"))).otherwise(value)


def _sure(parsed: Any, twice: Twice) -> Any:
    """The expression with every step of it that would guess replaced."""
    jvm: Any = SparkSession.active()._jvm
    given = parsed.children()
    children = [_sure(given.apply(number), twice) for number in range(given.size())]
    kind = parsed.getClass().getSimpleName()
    if kind == "Cast" and parsed.dataType().typeName() == "timestamp":
        children = [_expression(sure_text(_column(children[0])))]
    elif kind == "UnresolvedFunction":
        name = parsed.nameParts().last().lower()
        if (found := _called(name, [*map(_column, children)], twice)) is not None:
            return _expression(found)
        _refuse_pattern(name, children[1:])
    return parsed.withNewChildren(jvm.PythonUtils.toSeq(children)) if children else parsed


def _refuse_pattern(name: str, patterns: list[Any]) -> None:
    """Raises GuessedZone."""
    for pattern in patterns if name in _OF_TEXT else ():
        if pattern.getClass().getSimpleName() == "Literal":
            text = pattern.value().toString()
            if found := _LETTERS.search(re.sub("'.*?'", "", text)):
                fix = "read the offset by X, or the time by itself, then to_utc_timestamp(…, zone)"
                raise GuessedZone(
                    f"{name}(…, {text!r}): {found[0]} reads a zone's name, whose clocks skip times; fix: {fix}"
                )


def _called(name: str, given: list[Column], twice: Twice) -> AnyColumn | None:
    """What takes the place of the call, if one is needed."""
    if name == "to_utc_timestamp" and len(given) == 2:
        return _instant(given[0].cast("timestamp"), given[1], twice)
    if (parts := _OF_PARTS.fullmatch(name)) and len(given) == 7:
        local = F.call_function(f"{parts[1] or ''}make_timestamp_ntz", *given[:6])
        return _instant(local.cast("timestamp"), given[6], twice)
    if name == "convert_timezone" and len(given) == 3:
        at = _instant(given[2].cast("timestamp"), given[0], twice)
        return F.from_utc_timestamp(at, given[1]).cast("timestamp_ntz")
    if name in _OF_TEXT and len(given) == 1:
        return F.call_function(name, sure_text(given[0]))
    return None


def _instant(local: AnyColumn, zone: AnyColumn, twice: Twice) -> AnyColumn:
    """local: as if it were of UTC."""
    day = F.expr("INTERVAL '1' DAY")

    def told(of: AnyColumn) -> AnyColumn:
        shown, its = of["local"], of["zone"]
        earlier = F.to_utc_timestamp(shown, its)
        after = earlier + day  # clocks are never set back by more
        later = shown - (F.from_utc_timestamp(after, its) - after)
        skipped = F.from_utc_timestamp(earlier, its) != shown
        repeated = (later != earlier) & (F.from_utc_timestamp(later, its) == shown)
        chosen = {"earlier": earlier, "later": later}.get(twice or "", F.raise_error(F.lit("twice")))
        return F.when(skipped, F.raise_error(F.lit("skipped"))).when(repeated, chosen).otherwise(earlier)

    # a list of one, so that both are computed once
    one = F.array(F.struct(local.alias("local"), zone.alias("zone")))
    return F.transform(one, told)[0]


def _column(expression: Any) -> Column:
    return Column(_utils().column(expression))


def _expression(column: AnyColumn) -> Any:
    return _utils().expression(column._jc)


def _utils() -> Any:
    jvm: Any = SparkSession.active()._jvm
    return jvm.org.apache.spark.sql.classic.ExpressionUtils

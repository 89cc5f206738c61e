"""Golden records: a message of every type and version, as a producer of its time wrote it. They are never edited.

golden = Golden(Path(__file__).parent / "golden", DECIDER)
golden.check()
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.domain.decider import Decider
from shared.domain.errors import BadMessage, first_problem
from shared.domain.message import Command


@dataclass(frozen=True, slots=True)
class Golden:
    """folder: has `<type>.v<version>.json` for each."""

    folder: Path
    decider: Decider[Any, Any, Any]

    def __call__(self, name: str) -> bytes:
        """The record of that name, as compact as on the wire."""
        return json.dumps(json.loads((self.folder / f"{name}.json").read_bytes()), separators=(",", ":")).encode()

    def names(self) -> set[str]:
        return {path.stem for path in self.folder.glob("*.json")}

    def check(self) -> None:
        """Every version of every type has its record and is read; the present version is written so, but for defaults.

        And a present command is read as FastAPI reads it, from parsed JSON, in which a strict enum is only a text.

        Raises AssertionError.
        """
        declared = {
            f"{message.TYPE}.v{version}"
            for message in (*self.decider.events, *self.decider.commands)
            for version in range(1, message.VERSION + 1)
        }
        assert self.names() == declared, (
            f"without a record, or without a message: {sorted(self.names() ^ declared)}; "
            f"fix: `python3 dev.py check --accept` writes records that lack"
        )
        kinds: Any = (
            (self.decider.event_codec, self.decider.events),
            (self.decider.command_codec, self.decider.commands),
        )
        for codec, messages in kinds:
            for message in messages:
                read = [self._read(codec, f"{message.TYPE}.v{version}") for version in range(1, message.VERSION + 1)]
                written = codec.encode(read[-1])
                record = json.loads(self(f"{message.TYPE}.v{message.VERSION}"))
                same = _holds(json.loads(written), record) and codec.decode(written) == read[-1]
                assert same, f"{message.TYPE} is written otherwise now"
                if issubclass(message, Command):
                    _check_body(message, record["data"])

    def _read(self, codec: Any, name: str) -> Any:
        try:
            return codec.decode(self(name))
        except BadMessage as bad:
            raise AssertionError(
                f"{name} can't be read any more: {bad.reason}; fix: give a new field a default, or the message "
                f"the next VERSION and an upcaster"
            ) from None


def _check_body(command: type[Command], data: Any) -> None:
    try:
        command.model_validate(data)
    except ValidationError as error:
        raise AssertionError(
            f"{command.TYPE} gets 422 over HTTP: {first_problem(error)}; fix: declare the field as "
            f"Annotated[X, Field(strict=False)]"
        ) from None


def _holds(found: Any, record: Any) -> bool:
    """Whether all of the record is there. It lacks the fields that came later."""
    match found, record:
        case dict(), dict():
            return record.keys() <= found.keys() and all(_holds(found[name], record[name]) for name in record)
        case list(), list():
            return len(found) == len(record) and all(map(_holds, found, record))
        case _:  # 5.0 is not 5 to a reader that takes integers
            return type(found) is type(record) and bool(found == record)

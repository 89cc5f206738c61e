"""Golden records: a message of every type and version, as a producer of its time wrote it. They are never edited.

golden = Golden(Path(__file__).parent / "golden", DECIDER)
golden.check()
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.es.decider import Decider


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
        """Every version of every type has its record and is read; the present version is written just so.

        Raises AssertionError, or BadMessage for a record that can't be read any more.
        """
        declared = {
            f"{message.TYPE}.v{version}"
            for message in (*self.decider.events, *self.decider.commands)
            for version in range(1, message.VERSION + 1)
        }
        assert self.names() == declared, f"without a record, or without a message: {sorted(self.names() ^ declared)}"
        kinds: Any = (
            (self.decider.event_codec, self.decider.events),
            (self.decider.command_codec, self.decider.commands),
        )
        for codec, messages in kinds:
            for message in messages:
                read = [codec.decode(self(f"{message.TYPE}.v{version}")) for version in range(1, message.VERSION + 1)]
                written = self(f"{message.TYPE}.v{message.VERSION}")
                assert codec.encode(read[-1]) == written, f"{message.TYPE} is written otherwise now"

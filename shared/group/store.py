"""What Faust sees of a table's rows: nothing, for the engine alone reads, writes and restores them."""

from __future__ import annotations

from typing import Any, NoReturn

from faust.stores.base import SerializedStore

from shared.tables.store import RowStore


class HiddenStore(SerializedStore[bytes, bytes]):
    """Closes `rows` when the app stops. Whoever reads or writes the Faust table itself gets a TypeError."""

    def __init__(self, rows: RowStore, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = rows

    async def stop(self) -> None:
        self.rows.close_all()

    def persisted_offset(self, *_: object) -> None:
        """Faust asks at every assignment: to open the stores for an answer would leave some open."""

    def reset_state(self) -> None:
        self.rows.remove()

    def _refused(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "Faust does not see the rows of a table; fix: read them by `shared.http`, or as another service does; to "
            "change them, send a command or an event"
        )

    _get = _set = _del = _contains = _size = _clear = _iterkeys = _itervalues = _iteritems = _refused
    set_persisted_offset = apply_changelog_batch = backup_partition = restore_backup = _refused

"""What is known of an item besides its state: how many pieces arrived, how many left, and how many are on the shelf."""

from shared.domain import State


class Level(State):
    """Pieces. physical: what the shelf holds, reserved or not."""

    received: int = 0
    shipped: int = 0
    physical: int = 0

    def moved(self, received: int = 0, shipped: int = 0) -> "Level":
        """The level after so many more pieces arrived or left."""
        return Level(
            received=self.received + received,
            shipped=self.shipped + shipped,
            physical=self.physical + received - shipped,
        )

"""Whom pickups are for: `up` runs what calls them; elsewhere it is `python3 dev.py effect run pickups`."""

from collections.abc import Sequence

from services.pickups.settings import PickupsSettings
from shared.effects import Effects, Target, Webhook
from shared.service import read_settings


def targets() -> Sequence[Target]:
    own = read_settings(PickupsSettings)
    return [Webhook("courier", url=own.courier_url, secret=own.courier_secret)] if own.courier_url else []


EFFECTS = Effects("/pickups", targets)

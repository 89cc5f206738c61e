"""Whom errands are for: `python3 dev.py effect run errands` calls them."""

from collections.abc import Sequence

from shared.effects import Effects, Mail, Target, Webhook
from shared.service import read_settings
from tests.patterns.errands.settings import ErrandsSettings


def targets() -> Sequence[Target]:
    """Those that are set."""
    own = read_settings(ErrandsSettings)
    found: list[Target] = []
    if own.partner_url:
        found.append(Webhook("partner", url=own.partner_url, secret=own.partner_secret))
    if own.mail_host:
        found.append(
            Mail(
                "mail",
                host=own.mail_host,
                port=own.mail_port,
                tls=own.mail_tls,
                sender=own.mail_sender,
                user=own.mail_user,
                password=own.mail_password,
            )
        )
    return found


EFFECTS = Effects("/errands", targets)

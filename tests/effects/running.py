"""A runner of errands: `python -m tests.effects.running RECEIVER MAIL_PORT URL…`."""

import sys
from collections.abc import Sequence

from pydantic import SecretStr

from shared.effects import Effects, Mail, Target, Webhook
from shared.effects.runner import run
from shared.runtime.settings import load_settings
from tests.effects.receiver import SECRET

RECEIVER, MAIL_PORT, *URLS = sys.argv[1:]


def webhook(name: str, at_once: int, repeats: bool = True) -> Webhook:
    url, secret = f"{RECEIVER}/{name}", SecretStr(SECRET)
    return Webhook(name, url=url, secret=secret, at_once=at_once, repeats=repeats, timeout_s=2.0, rests_s=0.2)


def targets() -> Sequence[Target]:
    """keyed knows repeats by their key. plain takes each call for another. once may not be called again."""
    mail = Mail("mail", host="127.0.0.1", port=int(MAIL_PORT), tls=False, sender="shop@example.org")
    return [webhook("keyed", 20), webhook("plain", 1), webhook("once", 1, repeats=False), mail]


if __name__ == "__main__":
    run(Effects("/errands", targets), URLS, None, load_settings())

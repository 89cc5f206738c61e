"""Calls outside that can't be taken back: recorded once, called at least once.

Enters: httpx and smtplib, with the client in http and what is below it; neither the engine nor Kafka.

A service's `effects.py` imports from here:

Effects     where a service's effects are found, and whom they are for
Target      whom the runner calls, within which limits
Webhook     one that gets JSON, signed by Standard Webhooks
Mail        one that gets mail, by SMTP
Content     what is sent
CallFailed  a call certainly had no effect
"""

from shared.effects.mail import Mail
from shared.effects.target import CallFailed, Effects, Target
from shared.effects.webhook import Webhook
from shared.topology.effect import Content

__all__ = ["CallFailed", "Content", "Effects", "Mail", "Target", "Webhook"]

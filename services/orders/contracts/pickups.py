"""Pickups as orders sees them: the command that it sends there."""

from shared.domain import Command


class RequestPickup(Command):
    TYPE = "pickup.request"

    target: str
    to: str = ""
    subject: str = ""
    body: str

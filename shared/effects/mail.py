"""Mail by SMTP. Its `Message-ID` is made of the effect's id, so that mailboxes which know repeats see one."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage

from pydantic import SecretStr

from shared.effects.target import CallFailed, Target, key_of
from shared.topology.effect import Content

_FINAL = 500  # from here on SMTP's replies are permanent


@dataclass(frozen=True)
class Mail(Target):
    """Hands a mail with the text in `body` to a server.

    host, port      of the server.
    sender          the address that it comes from.
    tls             whether to ask for STARTTLS, and to check the server's certificate.
    user, password  to sign in with; without a user nobody signs in.
    name, repeats, at_once, timeout_s, breaks_after, rests_s: as of every Target.

    A reply of 5xx to the recipient or the text gives the effect up. One to the user or the sender is of all mails: the
    effect is tried again.
    """

    host: str = field(kw_only=True)
    port: int = field(default=587, kw_only=True)
    sender: str = field(kw_only=True)
    tls: bool = field(default=True, kw_only=True)
    user: str = field(default="", kw_only=True)
    password: SecretStr = field(default=SecretStr(""), kw_only=True)

    async def send(self, effect_id: str, content: Content) -> None:
        try:
            message = self._message(effect_id, content)
        except ValueError as error:  # such as a line break in an address
            raise CallFailed("it is no mail", final=True) from error
        await asyncio.to_thread(self._deliver, message)

    def _message(self, effect_id: str, content: Content) -> EmailMessage:
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self.sender, content.to, content.subject
        message["Message-ID"] = f"<{key_of(effect_id)}@{self.sender.rpartition('@')[2].rstrip('>')}>"
        message.set_content(content.body)
        return message

    def _deliver(self, message: EmailMessage) -> None:
        try:
            smtp = smtplib.SMTP(self.host, self.port, timeout=self.timeout_s)
        except OSError as error:
            raise CallFailed(type(error).__name__) from error
        try:
            if self.tls:
                smtp.starttls(context=ssl.create_default_context())
            if self.user:
                smtp.login(self.user, self.password.get_secret_value())
            smtp.send_message(message)
        except smtplib.SMTPRecipientsRefused as refused:
            raise _failure(*(code for code, _ in refused.recipients.values())) from refused
        except smtplib.SMTPDataError as refused:
            raise _failure(refused.smtp_code) from refused
        except smtplib.SMTPResponseException as refused:  # all mails, such as for the password
            raise CallFailed(f"SMTP {refused.smtp_code}") from refused
        finally:
            with suppress(OSError, smtplib.SMTPException):
                smtp.quit()


def _failure(*codes: int) -> CallFailed:
    return CallFailed(f"SMTP {min(codes)}", final=min(codes) >= _FINAL)

"""What targets are sent, and what their answers mean."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import quote, unquote

import pytest
from pydantic import SecretStr

from shared.effects import CallFailed, Content, Mail, Webhook
from shared.effects.target import key_of
from shared.effects.webhook import Unclear, signature
from tests.effects.mailbox import NO_SUCH, Mailbox
from tests.effects.receiver import SECRET


def test_a_webhook_is_signed_as_the_reference_libraries_of_standard_webhooks_do() -> None:
    signed = signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(("effect_id", "key"), [("things:t-1/2", "things:t-1/2"), ("ä b", "%C3%A4%20b")])
def test_a_key_is_the_effects_id_as_a_header_may_have_it(effect_id: str, key: str) -> None:
    assert key_of(effect_id) == key


class Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, _, later = self.path.removeprefix("/").partition("?")
        self.send_response(int(status))
        if later:
            self.send_header("Retry-After", unquote(later))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def sent(url: str) -> object:
    """The error, if there was one."""
    webhook = Webhook("partner", url=url, secret=SecretStr(SECRET))
    try:
        await webhook.send("e-1", Content(target="partner", body="{}"))
    except (CallFailed, Unclear) as error:
        return error
    finally:
        await webhook._http.aclose()
    return None


@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_receiver_that_says_yes_has_it(url: str, status: int) -> None:
    assert asyncio.run(sent(f"{url}/{status}")) is None


@pytest.mark.parametrize(("status", "final"), [(302, False), (404, False), (429, False), (503, False), (410, True)])
def test_a_receiver_that_says_no_has_it_not(url: str, status: int, final: bool) -> None:
    failed = asyncio.run(sent(f"{url}/{status}"))
    assert isinstance(failed, CallFailed)
    assert (str(failed), failed.final) == (str(status), final)


@pytest.mark.parametrize(
    ("later", "least_s", "most_s"),
    [
        ("120", 120, 120),
        (formatdate(time.time() + 7200, usegmt=True), 3600, 7200),
        ("soon", 0, 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", -math.inf, 0),
    ],
    ids=["seconds", "date", "neither", "past"],
)
def test_a_receiver_may_say_for_how_long_it_wants_no_calls(url: str, later: str, least_s: float, most_s: float) -> None:
    failed = asyncio.run(sent(f"{url}/429?{quote(later)}"))
    assert isinstance(failed, CallFailed)
    assert least_s <= failed.rest_s <= most_s


@pytest.mark.parametrize("status", [500, 502, 504])
def test_an_error_of_the_receiver_says_nothing_of_the_effect(url: str, status: int) -> None:
    assert isinstance(asyncio.run(sent(f"{url}/{status}")), Unclear)


def test_a_receiver_that_is_away_has_it_not() -> None:
    assert str(asyncio.run(sent("http://127.0.0.1:1/200"))) == "ConnectError"


@pytest.mark.parametrize("to", [NO_SUCH, "ann@example.org\nBcc: all@example.org"])
def test_mail_that_can_never_be_delivered_is_refused_for_good(to: str) -> None:
    with Mailbox() as mailbox:
        mail = Mail("mail", host="127.0.0.1", port=mailbox.port, tls=False, sender="shop@example.org")
        with pytest.raises(CallFailed) as failed:
            asyncio.run(mail.send("e-1", Content(target="mail", to=to, body="hello")))
        assert failed.value.final
        assert mailbox.mails == []


@pytest.mark.parametrize(
    ("answers", "reason", "final"),
    [
        ({b"AUTH": "535 the password has changed"}, "SMTP 535", False),
        ({b"AUTH": "530 not now"}, "SMTP 530", False),
        ({b"MAIL": "530 sign in first"}, "SMTP 530", False),
        ({b"RCPT": "450 the mailbox is busy"}, "SMTP 450", False),
        ({b"DATA": "451 not now"}, "SMTP 451", False),
        ({b"DATA": "554 this is no mail"}, "SMTP 554", True),
    ],
)
def test_a_mail_is_given_up_for_what_it_is_and_not_for_what_the_sender_may(
    answers: dict[bytes, str], reason: str, final: bool
) -> None:
    with Mailbox({b"EHLO": "250-mailbox\r\n250 AUTH PLAIN"} | answers) as mailbox:
        port, user = mailbox.port, "shop" if b"AUTH" in answers else ""
        mail = Mail("mail", host="127.0.0.1", port=port, tls=False, sender="shop@example.org", user=user)
        with pytest.raises(CallFailed) as failed:
            asyncio.run(mail.send("e-1", Content(target="mail", to="ann@example.org", body="hello")))
    assert (str(failed.value), failed.value.final) == (reason, final)

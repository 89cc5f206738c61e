"""One worker of the next version of the tests' own accounts, which decides the same.

faust -A bench.sides.next_accounts worker
"""

from bench.accounts import NEXT
from shared.service import service_app
from tests.accounts.api import routes

app = service_app(NEXT, routes)

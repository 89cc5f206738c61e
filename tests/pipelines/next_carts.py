"""A worker of the next version of carts.

faust -A tests.pipelines.next_carts worker
"""

from dataclasses import replace

from shared.service import service_app
from tests.carts.api import routes
from tests.carts.service import SERVICE

app = service_app(replace(SERVICE, topology=SERVICE.topology.next_version), routes)

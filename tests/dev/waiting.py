import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

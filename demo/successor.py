"""python -m demo.successor SERVICE: a worker as it is once `version` is raised in the service's topology.py."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from importlib import import_module

from shared.dev.worker import faust_command


def command(service: str) -> list[str]:
    return [sys.executable, "-m", "demo.successor", service]


if __name__ == "__main__":
    module = import_module(f"services.{sys.argv[1]}.service")
    module.SERVICE = replace(module.SERVICE, topology=module.SERVICE.topology.next_version)  # type: ignore[attr-defined]
    _, _, name, *sys.argv[1:] = faust_command(sys.argv[1])
    runpy.run_module(name, run_name="__main__", alter_sys=True)

"""Runs tasks on a Ray cluster; the only module that imports ray.

A task that dies with its worker is run again. One that raises an error is not, for it would raise
it again: the others are cancelled.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from gnnstore.errors import GnnstoreError, StorageError, UsageError
from gnnstore.units import format_count, format_size

R = TypeVar("R")

_MAX_RETRIES = 3
_ADDRESS = re.compile(r"(ray://)?(?P<host>[^:/]+|\[[^]]+\]):(?P<port>\d{1,5})")
_REACH_SECONDS = 10


def run_on_ray(
    task: Callable[[int], R],
    num_tasks: int,
    *,
    num_cpus: int,
    memory_bytes: int,
    on_done: Callable[[int, R], None],
) -> None:
    """Call a function, which is pickled, for each number below `num_tasks` somewhere on a cluster.

    `num_cpus` and `memory_bytes` are a task's; `on_done` is called here as each has ended.
    """
    ray = _import_ray()
    is_own = not ray.is_initialized()
    if is_own:
        _connect(ray)
    try:
        _check_room(ray, num_cpus, memory_bytes)

        @ray.remote(max_retries=_MAX_RETRIES, num_cpus=num_cpus, memory=memory_bytes)  # type: ignore[untyped-decorator]
        def started(number: int) -> R:  # Ray takes functions only
            return task(number)

        numbers = {started.remote(number): number for number in range(num_tasks)}
        try:
            while numbers:
                (ref,), _ = ray.wait(list(numbers), num_returns=1)
                on_done(numbers.pop(ref), _result(ray, ref))
        finally:
            for ref in numbers:
                ray.cancel(ref, force=True)
    finally:
        if is_own:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            f"--ray needs Ray, which is not installed ({error}); pip install 'gnnstore[ray]'"
        ) from error
    return ray


def _connect(ray: Any) -> None:
    """Connect to the cluster that the environment names, or start one of this machine."""
    address = os.environ.get("RAY_ADDRESS")
    given = {} if address else {"include_dashboard": False}
    try:
        if address and (match := _ADDRESS.fullmatch(address)) is not None:
            # Ray itself would try for minutes.
            socket.create_connection((match["host"], int(match["port"])), _REACH_SECONDS).close()
        ray.init(logging_level="ERROR", log_to_driver=False, **given)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"RAY_ADDRESS={address}" if address else "this machine"
        raise StorageError(
            f"there is no Ray cluster at {where} ({str(error).partition(chr(10))[0]}); start one "
            "with 'ray start --head', or leave RAY_ADDRESS out for one of this machine alone"
        ) from error


def _check_room(ray: Any, num_cpus: int, memory_bytes: int) -> None:
    """Refuse tasks that no node has room for: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(n.get("CPU", 0) >= num_cpus and n.get("memory", 0) >= memory_bytes for n in nodes):
        return
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in _NAMES}
    raise UsageError(
        f"a task takes {format_count(num_cpus, 'processor')} and {format_size(memory_bytes)}, and "
        "no node of the "
        f"cluster has both: they have up to {format_count(int(most['CPU']), 'processor')} and "
        f"{format_size(int(most['memory']))}; lower --threads or --memory"
    )


_NAMES = ("CPU", "memory")


def _result(ray: Any, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, GnnstoreError):
            raise error.cause from None
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise StorageError(
            f"a task ended {_MAX_RETRIES + 1} times with its worker "
            f"({str(error).partition(chr(10))[0]}); look at the memory of the nodes, and lower "
            "--memory"
        ) from error
    except ray.exceptions.RayError as error:  # such as a node that died
        raise StorageError(
            f"a task was lost on the cluster ({str(error).partition(chr(10))[0]}); look at its "
            "nodes, and repeat the command: parts that are there are done"
        ) from error

"""Starts processes that have imported torch, as forks of one that did nothing else.

Importing torch_geometric takes 3 to 5 seconds of a processor, ten times as long as most tests of a
process that is killed or ends. A fork of a process that has imported it takes 20 milliseconds, and
is otherwise like a new interpreter: other forks leave nothing behind in it.

A fork shares its memory with the process that it comes from, and a memory cgroup charges a page to
whoever copies it: where memory is measured, the fork first copies all of it, in a quarter of a
second.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# A child leaves the loop and runs the code as the last line of the script, so that it ends as
# any interpreter does: a traceback on stderr and its status, waiting for threads, `atexit`, and,
# where it unloads modules, what torch and the core do then.
_SERVER = """
import atexit, ctypes, gc, importlib, json, os, pickle, socket, sys, threading
from pathlib import Path

status = None  # of a child that leaves without unloading modules

def leave():
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

atexit.register(leave)  # first, so that it is called last

import numpy as np

def own_memory():
    # Pages that the server has are mapped here, and copied where they can be written to.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    read, write, page = 22, 23, os.sysconf("SC_PAGESIZE")  # MADV_POPULATE_*
    with open(f"/proc/{os.getppid()}/pagemap", "rb", 0) as pages:
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights[0] == "-" or rights[3] == "s" or "[v" in line:
                continue
            start, end = (int(address, 16) for address in place.split("-"))
            pages.seek(start // page * 8)
            present = np.frombuffer(pages.read((end - start) // page * 8), np.uint64) >> 63
            turns = np.flatnonzero(np.diff(present.astype(np.int8), prepend=0, append=0))
            for first, last in turns.reshape(-1, 2).tolist():
                run = start + first * page, (last - first) * page
                if madvise(*map(ctypes.c_size_t, run), write if rights[1] == "w" else read):
                    raise OSError(ctypes.get_errno(), f"cannot map {line}")

def next_task():
    channels = [socket.socket(fileno=int(number)) for number in sys.argv[1].split(",")]
    for name in sys.argv[2:]:
        importlib.import_module(name)
    from tests.support.disks import measure_in_no_time
    measure_in_no_time()
    # Or each child at its end looks through all that torch is: 1.4 seconds instead of 0.3.
    gc.collect()
    gc.freeze()
    # A thread would be missing in the children, with all the locks that it holds.
    assert threading.active_count() == 1, threading.enumerate()
    channel = channels[0]
    for other in channels[1:]:
        if os.fork() == 0:
            channel = other
            break
    for other in channels:
        if other is not channel:
            other.close()
    try:
        channel.send(b"ready")
    except BrokenPipeError:  # nobody had anything to ask
        sys.exit()
    while True:
        message, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            sys.exit()
        child = os.fork()
        if child == 0:
            channel.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return json.loads(message)
        for file in files:
            os.close(file)
        channel.send(str(child).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.send(str(status).encode())

try:
    task = next_task()
except KeyboardInterrupt:  # the tests are interrupted, and report it
    sys.exit(1)
sys.argv[:] = ["-c", *task["arguments"]]
os.environ.clear()
os.environ.update(task["environment"])
os.chdir(task["directory"])
if "torch" in sys.modules and "OMP_NUM_THREADS" in os.environ:  # which it has read already
    sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
if task["own_memory"]:
    own_memory()
names = {"__name__": "__main__", "given": pickle.loads(bytes.fromhex(task["given"]))}
code = compile(task["code"], "<string>", "exec")
if task["unloads"]:
    exec(code, names)
else:
    try:
        exec(code, names)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        status = 1
        raise
"""

# Runs the script that is the first argument, as `python` does.
RUN_SCRIPT = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Forked:
    """A running process; a subset of `subprocess.Popen`."""

    pid: int
    stdin: IO[str]
    stdout: IO[str]
    _channel: socket.socket
    returncode: int | None = None  # negative if a signal killed it, None until `wait`

    def send_signal(self, number: int) -> None:
        """Send a signal, unless `wait` has returned."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it has ended, and return its status."""
        if self.returncode is None:
            self.returncode = int(self._channel.recv(64))
        return self.returncode

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stdin.close()
        self.stdout.close()
        if error is not None:  # it may wait for ever
            self.send_signal(signal.SIGKILL)
        self.wait()


class ForkServer:
    """Starts processes that have imported some modules; one of them at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._last: Forked | None = None

    def start(
        self,
        code: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        given: object = None,
        own_memory: bool = False,
        unloads: bool = False,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Forked:
        """Run code in a process of its own in this directory, as `python -c` does.

        Parameters
        ----------
        *arguments : object
            The elements of `sys.argv` after the first.
        environment : mapping of str to str, optional
            Instead of this process's. Modules that were imported have read the old one.
        given : object
            Pickled here; the code finds it under this name.
        own_memory : bool
            Whether it holds all of its memory by itself when the code begins, as a process that
            has imported the modules does: what it takes from then on can be measured.
        unloads : bool
            Whether it unloads modules at its end, which takes half a second.
        stdout, stderr : int, optional
            Open files for its output, instead of a pipe and this process's.

        Raises
        ------
        RuntimeError
            If the last process that was started was not waited for.
        """
        if self._last is not None and self._last.returncode is None:
            raise RuntimeError(f"wait for process {self._last.pid} before another is started")
        task = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(os.environ if environment is None else environment),
            "directory": str(Path.cwd()),
            "given": pickle.dumps(given).hex(),
            "own_memory": own_memory,
            "unloads": unloads,
        }
        input_end, our_input = os.pipe()
        our_output, output_end = os.pipe()
        try:
            files = [input_end, output_end if stdout is None else stdout, stderr or 2]
            socket.send_fds(self._channel, [json.dumps(task).encode()], files)
        finally:
            os.close(input_end)
            os.close(output_end)
        self._last = Forked(
            int(self._channel.recv(64)),
            os.fdopen(our_input, "w"),
            os.fdopen(our_output),
            self._channel,
        )
        return self._last

    def run(
        self,
        code: str,
        *arguments: object,
        text: str = "",
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run code to its end with text on its standard input; return its status and output."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            options |= {"stdout": out.fileno(), "stderr": err.fileno()}
            with self.start(code, *arguments, **options) as process:
                with suppress(BrokenPipeError):  # it has ended without reading that
                    process.stdin.write(text)
                    process.stdin.close()
                status = process.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(code, status, out.read(), err.read())


MODULES = ("gnnstore.layerwise.run", "tests.support.packing", "torch_geometric.nn")


def start_servers(count: int) -> tuple[subprocess.Popen[bytes], list[socket.socket]]:
    """Start a process that imports `MODULES`, which start no thread, and becomes several servers.

    Each ends when the socket that it is asked through is closed.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    files = [theirs.fileno() for _, theirs in pairs]
    command = [sys.executable, "-W", "ignore", "-c", _SERVER, ",".join(map(str, files)), *MODULES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, pass_fds=files, env=environment)
    for _, theirs in pairs:
        theirs.close()
    return process, [ours for ours, _ in pairs]


def wait_for_server(channel: socket.socket) -> ForkServer:
    """Return the server that is asked through a socket, when it has imported its modules."""
    if channel.recv(64) != b"ready":
        raise RuntimeError(f"the process that imports {MODULES} has ended")
    return ForkServer(channel)


def check_in_fork(check: Callable[[], object], seconds: int = 60) -> None:
    """Call a function in a fork of this process, which ends without tidying anything up.

    Torch's threads are missing there: what it calls goes by NumPy.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)  # ends a child that waits for threads that are not there
            check()
            status = 0
        except BaseException:
            traceback.print_exc()  # os._exit prints nothing
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""The pipeline: order, look-ahead, errors, and that nothing survives its consumer."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore.errors import BudgetError, UsageError
from gnnstore.threads import CancelledError, Lookahead, MemoryGate, Workers, ordered_map, prefetch
from tests.support.loaders import threads_of_loaders


def depth(n: int) -> Callable[[], int]:
    return lambda: n


@pytest.mark.parametrize("num_threads", [0, 1, 2, 4])
@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_results_come_in_order(num_threads: int, ahead: int) -> None:
    def slow_if_even(n: int) -> int:
        time.sleep(0.002 * (n % 2 == 0))
        return n * n

    results = ordered_map(slow_if_even, range(20), num_threads=num_threads, lookahead=depth(ahead))
    assert list(results) == [n * n for n in range(20)]
    assert threads_of_loaders() == []


@pytest.mark.parametrize("num_threads", [0, 2])
def test_no_items(num_threads: int) -> None:
    empty: list[int] = []
    assert list(ordered_map(str, empty, num_threads=num_threads, lookahead=depth(2))) == []


def test_items_are_taken_in_the_consumers_thread_and_never_too_far_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for n in range(50):
            assert threading.current_thread() is threading.main_thread()
            taken.append(n)
            yield n

    results = ordered_map(abs, items(), num_threads=2, lookahead=depth(3))
    for k, _ in enumerate(results):
        assert len(taken) <= k + 3
    assert taken == list(range(50))


def test_work_is_done_in_threads_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)
    results = ordered_map(lambda _: barrier.wait(), range(3), num_threads=3, lookahead=depth(3))
    assert sorted(results) == [0, 1, 2]


def test_the_initializer_runs_once_in_each_thread() -> None:
    names = []
    barrier = threading.Barrier(2, timeout=20)
    list(
        ordered_map(
            lambda _: barrier.wait(),
            range(4),
            num_threads=2,
            lookahead=depth(2),
            initializer=lambda: names.append(threading.current_thread().name),
        )
    )
    assert len(names) == len(set(names)) == 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_comes_in_its_turn_and_says_where(num_threads: int) -> None:
    def fail_at_5(n: int) -> int:
        if n == 5:
            raise ZeroDivisionError("five")
        return n

    results = ordered_map(
        fail_at_5,
        range(20),
        num_threads=num_threads,
        lookahead=depth(4),
        describe="while preparing batch {} of epoch 3".format,
    )
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError, match="five") as caught:
        next(results)
    assert caught.value.__notes__ == ["while preparing batch 5 of epoch 3"]
    assert threads_of_loaders() == []


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_of_the_source_comes_after_what_came_before(num_threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise KeyError("source")

    got: list[int] = []
    with pytest.raises(KeyError, match="source"):
        got.extend(iter(ordered_map(abs, items(), num_threads=num_threads, lookahead=depth(10))))
    results = ordered_map(abs, items(), num_threads=num_threads, lookahead=depth(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert threads_of_loaders() == []


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_an_item_that_is_not_ready_is_waited_for_last(num_threads: int) -> None:
    class Items(Iterator[int]):
        """Those from the third on are not ready."""

        num_taken = 0

        def __next__(self) -> int:
            if self.num_taken >= 3:
                assert len(found) == self.num_taken, "results wait for an item"
            if self.num_taken == 6:
                raise StopIteration
            self.num_taken += 1
            return self.num_taken

        def is_ready(self) -> bool:
            return self.num_taken < 3

    found: list[int] = []
    doubled = ordered_map(lambda x: 2 * x, Items(), num_threads=num_threads, lookahead=lambda: 10)
    found.extend(doubled)
    assert found == [2, 4, 6, 8, 10, 12]


def test_leaving_early_cancels_what_has_not_begun() -> None:
    done = []

    def work(n: int) -> int:
        time.sleep(0.01)
        done.append(n)
        return n

    for n in ordered_map(work, range(1000), num_threads=2, lookahead=depth(500)):
        if n == 3:
            break
    assert threads_of_loaders() == []
    assert len(done) < 20


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
def test_an_iterator_runs_in_its_own_thread_and_so_far_ahead(num_ahead: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[list[int]]:
        for n in range(30):
            assert threading.current_thread() is not threading.main_thread()
            taken.append(n)
            yield [n]

    found = []
    for item in prefetch(items(), num_ahead=num_ahead):
        found += item
        assert len(taken) <= len(found) + num_ahead
    assert found == list(range(30))
    assert threads_of_loaders() == []


def test_a_prefetched_iterator_is_told_to_stop() -> None:
    stopped = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        assert stopped.wait(20)
        raise AssertionError("nobody asks for it")

    ahead = prefetch(items(), stop=stopped.set)
    assert next(ahead) == 1
    ahead.close()
    assert stopped.is_set()
    assert threads_of_loaders() == []


def test_an_error_of_a_prefetched_iterator_comes_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("enough")

    ahead = prefetch(items(), describe="at {}".format)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="enough") as info:
        next(ahead)
    assert info.value.__notes__ == ["at 1"]


def test_workers_end_all_tasks_before_one_fails() -> None:
    ended = []

    def task(n: int) -> int:
        time.sleep(0.005 * n)
        ended.append(n)
        if n in (1, 2):
            raise ValueError(f"task {n}")
        return n

    with Workers(2) as workers:
        assert workers.run(partial(pow, n, 2) for n in range(5)) == [0, 1, 4, 9, 16]
        with pytest.raises(ValueError, match="task 1"):
            workers.run(partial(task, n) for n in range(6))
        assert sorted(ended) == list(range(6))
        assert workers.run([]) == []


def test_no_call_is_cancelled_that_a_later_one_may_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches take turns: one that has begun would wait for ever for one before it."""
    ended, begun, made = threading.Event(), threading.Event(), threading.Event()

    class Late(SimpleQueue[Any]):
        def get(self, *args: Any) -> Any:
            call = super().get(*args)
            if isinstance(call, tuple) and call[1] == made.set:
                assert ended.wait(20)  # between what it takes, and what it does with that
            return call

    def wait() -> bool:
        begun.set()
        return made.wait(20)

    monkeypatch.setattr("gnnstore.threads.SimpleQueue", Late)
    with Workers(2, stop=ended.set) as workers:
        workers.submit(made.set)
        later = workers.submit(wait)
        assert begun.wait(20)
    assert later.result()


def test_an_error_in_the_consumer_leaves_no_thread() -> None:
    def consume() -> None:
        for n in ordered_map(abs, range(100), num_threads=2, lookahead=depth(4)):
            if n == 3:
                raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    assert threads_of_loaders() == []


def test_a_forgotten_generator_is_cleaned_up() -> None:
    results = ordered_map(abs, range(100), num_threads=2, lookahead=depth(4))
    next(results)
    assert threads_of_loaders()
    del results
    gc.collect()
    assert threads_of_loaders() == []


def test_a_generator_in_a_cycle_may_be_collected_by_its_own_thread() -> None:
    collected = threading.Event()

    class Holder:
        def __del__(self) -> None:
            collected.set()

    def collect_garbage(n: int) -> int:
        if n == 4:  # by then nobody refers to the generator any more
            forgotten.wait(20)
            gc.collect()
        return n

    forgotten = threading.Event()
    holder = Holder()
    holder.results = ordered_map(  # type: ignore[attr-defined]
        collect_garbage, range(100), num_threads=1, lookahead=depth(8)
    )
    holder.myself = holder  # type: ignore[attr-defined]
    gc.disable()
    try:
        assert next(holder.results) == 0  # type: ignore[attr-defined]
        del holder
        forgotten.set()
        assert collected.wait(20)
    finally:
        gc.enable()


def late_results(release: threading.Event, **options: Any) -> Generator[bool, None, None]:
    """Return results that come once an event is set, which is too late."""
    return ordered_map(
        lambda _: release.wait(20),
        range(2),
        num_threads=1,
        lookahead=depth(1),
        timeout_seconds=0.05,
        **options,
    )


def test_a_result_that_does_not_come_times_out() -> None:
    release = threading.Event()
    results = late_results(release)
    # The running call is released when the timeout closes the generator, not before.
    timer = threading.Timer(0.5, release.set)
    timer.start()
    with pytest.raises(TimeoutError, match=r"0\.05 seconds while preparing item 0; raise timeout="):
        next(results)
    timer.join()


# --- look-ahead under a budget -------------------------------------------------------------


def test_a_budget_bounds_the_bytes_ahead() -> None:
    lookahead = Lookahead(5, spare_bytes=1000)
    assert lookahead() == 1, "one batch until its size is known"
    for batch_bytes, expected, free in [
        (100, 5, 500),
        (200, 4, 200),
        (100, 4, 200),  # the largest batch so far decides
        (250, 3, 250),
        (300, 2, 400),
        (500, 1, 500),
    ]:
        lookahead.observe(batch_bytes)
        assert lookahead() == expected
        assert lookahead.recycled_bytes == free
    assert Lookahead(5).recycled_bytes is None


def test_what_preparing_takes_counts_but_for_the_consumers_batch() -> None:
    lookahead = Lookahead(9, spare_bytes=1000)
    for working_bytes, num_living, free in [
        (0, 5, 200),
        (50, 4, 300),
        (200, 3, 400),
        (600, 2, 800),
    ]:
        lookahead.observe(200, 0, working_bytes)
        assert lookahead.num_living == num_living
        assert num_living * 200 + (num_living - 1) * working_bytes <= 1000
        used = (num_living - 1) * 200 + (num_living - 2) * working_bytes
        assert lookahead.recycled_bytes == 1000 - used == free


def test_the_batch_of_the_iteration_before_counts() -> None:
    """A loop's variable has it until the first batch of the next iteration is there."""
    before = Lookahead(8, spare_bytes=1000, admits=True).gate
    assert before is not None
    before.expect(0)
    last = np.empty(1)
    with before.enter(0) as admitted:
        admitted.hold(last)
    before.close()
    lookahead = Lookahead(8, 1000, admits=True, before=before)
    gate = lookahead.gate
    assert gate is not None
    batches = [np.empty(1), np.empty(1)]
    for i in range(2):
        gate.expect(i)
    with gate.enter(0) as admitted:
        admitted.hold(batches[0])
    entered = threading.Event()

    def enter() -> None:
        with gate.enter(1) as admitted:
            admitted.hold(batches[1])
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.1)
    del last
    assert entered.wait(10)
    thread.join()
    assert gate.num_living == 2


def test_what_is_free_waits_for_the_batch_that_was_admitted() -> None:
    """Else the buffers of the batch before would go to the system a moment before they are used."""
    lookahead = Lookahead(8, spare_bytes=1000, admits=True)
    lookahead.observe(300)
    gate = lookahead.gate
    assert gate is not None
    batches = []
    for i in range(2):
        gate.expect(i)
        with gate.enter(i) as admitted:
            assert lookahead.recycled_bytes == 1000 - i * 300
            batches.append(admitted.filled_by(np.empty)(1))
            assert lookahead.recycled_bytes == 700 - i * 300  # while its rows are read, too
            admitted.hold(batches[i])
    gate.expect(2)
    with gate.enter(2):  # fails, and holds nothing
        assert lookahead.recycled_bytes == 400
    assert (gate.num_living, lookahead.recycled_bytes) == (2, 400)


class Rows:
    """Batches of an array each, of which at most so many live at once."""

    def __init__(self, most: int, num_batches: int) -> None:
        self.gate = MemoryGate(lambda: most)
        self.most_living = self.num_living = 0
        self._lock = threading.Lock()
        for i in range(num_batches):
            self.gate.expect(i)

    def make(self, i: int) -> NDArray[Any]:
        time.sleep(0.002 * (i % 3))  # they come in any order
        with self.gate.enter(i) as admitted:
            array = np.full(4, i)
            with self._lock:
                self.num_living += 1
                self.most_living = max(self.most_living, self.num_living)
            weakref.finalize(array, self._gone)
            admitted.hold(array)
        return array

    def _gone(self) -> None:
        self.num_living -= 1

    def all_of(self, num_batches: int) -> Generator[NDArray[Any], None, None]:
        def waiting(k: int) -> AbstractContextManager[object]:
            self.gate.want(k + 1)
            return nullcontext()

        return ordered_map(
            self.make,
            range(num_batches),
            num_threads=3,
            lookahead=depth(4),
            stop=self.gate.close,
            waiting=waiting,
        )


@pytest.mark.parametrize("most", [2, 3])
def test_a_batch_is_made_once_an_earlier_one_is_let_go_of(most: int) -> None:
    rows, batch = Rows(most, 30), np.empty(0)
    for i, batch in enumerate(rows.all_of(30)):
        assert batch[0] == i
        time.sleep(0.003)
    # `num_living` falls within the finalizers, which may run after that of the gate.
    assert 2 <= rows.most_living <= most + 1
    del batch
    assert rows.num_living == 0
    assert threads_of_loaders() == []


def test_a_batch_is_made_while_the_consumer_works_on_the_one_before() -> None:
    rows = Rows(2, 10)
    batches = rows.all_of(10)
    batch = next(batches)
    for i in range(1, 5):
        batch = next(batches)  # what it was before is gone now, and no further call says so
        for _ in range(1000):
            if rows.num_living == 2:
                break
            time.sleep(0.001)
        assert rows.num_living == 2, f"batch {i + 1} was not made beside {batch[0]}"
    batches.close()


def test_a_consumer_that_keeps_all_batches_gets_them_all() -> None:
    rows = Rows(2, 12)
    kept = list(rows.all_of(12))
    assert [batch[0] for batch in kept] == list(range(12))


def test_leaving_early_ends_those_that_wait_for_memory() -> None:
    rows = Rows(2, 10)
    batches = rows.all_of(10)
    first, second = next(batches), next(batches)
    batches.close()
    assert (first[0], second[0], threads_of_loaders()) == (0, 1, [])
    refused = pytest.raises(CancelledError, match="batch 3 is not wanted any more")
    with refused, rows.gate.enter(3):
        raise AssertionError


def test_a_budget_without_room_for_two_batches_is_an_error() -> None:
    lookahead = Lookahead(5, spare_bytes=1000)
    with pytest.raises(BudgetError, match=r"(?s)2 bytes too few.* needs 1002 bytes.*raise memory="):
        lookahead.observe(501)


# --- the end of the interpreter, and Ctrl-C ------------------------------------------------

PRELUDE = """
import signal, sys, threading, time
from gnnstore.threads import ordered_map

def work(n):
    time.sleep(0.05)
    return n

def results():
    return ordered_map(work, range(10**6), num_threads=2, lookahead=lambda: 4)
"""


def run_python(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_the_interpreter_ends_while_a_generator_is_suspended() -> None:
    ended = run_python("left = results()\nnext(left)\nprint('end')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_the_interpreter_ends_while_a_thread_waits_for_the_consumer() -> None:
    """It joins threads before it runs any `atexit`: one such kept it for ever."""
    code = """
taken, ended = threading.Event(), threading.Event()
def work(n):
    while n and not taken.is_set():
        time.sleep(0.01)
left = ordered_map(
    work, range(4), num_threads=2, lookahead=lambda: 3, stop=lambda: (taken.set(), print("told"))
)
next(left)
print("end")
"""
    ended = run_python(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\ntold\n", "")


def test_the_interpreter_ends_by_sys_exit_inside_the_loop() -> None:
    ended = run_python("for n in results():\n    if n == 3: sys.exit(7)")
    assert (ended.returncode, ended.stderr) == (7, "")


def test_the_interpreter_ends_by_an_error_inside_the_loop() -> None:
    ended = run_python("for n in results():\n    if n == 3: raise ValueError('in the loop')")
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("ValueError: in the loop")


def test_a_fork_does_not_go_on_with_an_iterator_whose_threads_it_has_not() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks of processes with threads
left = results()
next(left)
if os.fork() == 0:
    signal.alarm(30)
    next(left)  # which waited for ever
print(os.waitstatus_to_exitcode(os.wait()[1]), next(left))
"""
    ended = run_python(code)
    assert ended.stdout == "1 1\n"
    assert "UsageError: this iterator was begun in process" in ended.stderr
    assert "begin a new one after the fork" in ended.stderr


def test_a_fork_passes_no_call_to_threads_it_has_not() -> None:
    with Workers(1) as workers:
        assert workers.run([lambda: 1]) == [1]
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # it would hang
            try:
                workers.run([lambda: 1])
            except UsageError as error:
                os._exit("a fork of it does not have" not in str(error))
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert workers.run([lambda: 2]) == [2]


@pytest.mark.parametrize("where", ["while waiting", "in the body"])
def test_ctrl_c_ends_the_loop_and_leaves_no_thread(where: str) -> None:
    body = "time.sleep(0.001)" if where == "while waiting" else "time.sleep(1)"
    code = f"""
try:
    for n in results():
        print(n, flush=True)
        {body}
except KeyboardInterrupt:
    print("threads", threading.active_count())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert out.splitlines()[-1] == "threads 1"
    assert process.returncode == 0

# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts whose ranks are threads of one process.

Threads may share a GPU. There, a kernel that waits for another rank must not hold up the call of
that rank. So each rank has a stream of its own. Allocations and the loading of kernels may wait for
the whole GPU, so `meet` separates them from calls.
"""
import os
import queue
import sys
import threading
import time
import traceback

import checks

LONGEST_S = 45  # time limit of a check


def start(*modules):
    """Returns (Checks, number of ranks, number of GPUs); skips without `modules` or a GPU.

    The first process of the launcher gets a thread for each rank that was requested. The others end
    here, and the first is alone among the processes.
    """
    # Raises the number of hardware queues. In a shared queue a rank's kernel could stay behind a
    # kernel that waits for it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    checks.need(*modules)
    gpus = checks.gpu_count()
    if gpus == 0:
        checks.skip("there is no GPU")
    if os.environ.get("RANK", "0") != "0":
        sys.exit(0)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    os.environ.update(WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ranks = checks.Checks()
    ranks.run("calls reach Oriel", ranks.check_library)
    ranks.note(f"{count} threads of one process, {gpus} GPU(s)")
    return ranks, count, gpus


class Threads:
    """Ranks as threads of this process."""

    def __init__(self, count):
        self.count = count
        self.barrier = threading.Barrier(count)

    def meet(self):
        """Waits until every rank has called this."""
        self.barrier.wait(LONGEST_S)

    def run(self, body):
        """Calls body(rank) in a thread for each rank. Raises as soon as one of them raises, since
        the others may then wait for it for ever, or after LONGEST_S."""
        ended = queue.SimpleQueue()

        def run_one(rank):
            try:
                body(rank)
                ended.put((rank, None))
            except Exception as error:  # the main thread must learn of any error
                traceback.print_exc()
                ended.put((rank, error))
        for rank in range(self.count):
            threading.Thread(target=run_one, args=(rank,), daemon=True).start()
        end, waiting = time.monotonic() + LONGEST_S, set(range(self.count))
        while waiting:
            try:
                rank, error = ended.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"after {LONGEST_S} s these threads have not ended: "
                                   f"{sorted(waiting)}") from None
            if error is not None:
                raise RuntimeError(f"thread {rank}: {type(error).__name__}: {error}") from error
            waiting.remove(rank)

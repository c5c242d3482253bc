#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests the death of a rank. The last rank kills itself with SIGKILL while its peers wait in an
all-reduce. They must get an error within 30 s, by Work.wait or by PyTorch's watchdog.

A rank is a child of the process that the launcher started; that process only watches. Otherwise the
launcher would end the other ranks as soon as one rank has died.
"""
import os
import resource
import signal
import subprocess
import sys
import time

import checks
import torch_ranks

LONGEST_START_S = 60
LONGEST_ERROR_S = 30
CAUGHT = 42  # exit status of a rank that caught its error as an exception
WRONG = 43  # exit status if the collective ended without an error
# name -> (settings of PyTorch, exit statuses that mean a detected error)
MODES = {
    "wait": ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, [CAUGHT]),
    # The watchdog ends the process four times this timeout after it has seen the error. By default
    # PyTorch 2.11 leaves a minute for writing dumps, even if none are wanted.
    "watchdog": ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}, [CAUGHT, -signal.SIGABRT]),
}


def child(mode):
    """Runs one rank; the last one kills itself. Exits with CAUGHT or WRONG if it is not killed."""
    import torch
    import torch.distributed as dist
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(os.environ[checks.MEETING], f"store-{mode}"), world)
    torch_ranks.init(device, store=store, rank=rank, world_size=world)
    data = torch.ones(1 << 20, device=device)
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank == world - 1:
        time.sleep(2)  # lets the other ranks enter the collective
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        work = dist.all_reduce(data, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        # The kernel ends as soon as the death is known; then PyTorch's watchdog must report it.
        time.sleep(LONGEST_ERROR_S if mode == "watchdog" else 0)
    except RuntimeError as error:
        print(f"rank {rank} got {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        os._exit(CAUGHT)
    print(f"rank {rank}: the all-reduce has ended without an error", flush=True)
    os._exit(WRONG)


def start_child(mode, settings):
    """Runs a rank to its end; returns (exit status or None, time at which it ended)."""
    process = subprocess.Popen([sys.executable, __file__, "--child", mode],
                               env=dict(os.environ, **settings))
    try:
        return process.wait(LONGEST_START_S + LONGEST_ERROR_S), time.time()
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None, time.time()


def check(ranks, mode):
    settings, good = MODES[mode]
    if ranks.world < 2:
        raise checks.Skip("it needs two ranks")
    status, ended = start_child(mode, settings)
    last = ranks.world - 1
    # All ranks are on one host, so their clocks agree.
    results = ranks.share(f"ends of {mode}", [status, ended])
    died = results[last][1]
    if ranks.rank == last:
        ranks.expect(status == -signal.SIGKILL, f"the rank that dies: expected exit status "
                                                f"{-signal.SIGKILL}, got {status}")
        return
    ranks.expect(status in good, f"expected an exit status among {good}, got {status}")
    ranks.expect(ended - died < LONGEST_ERROR_S,
                 f"expected an end within {LONGEST_ERROR_S} s, got {ended - died:.1f} s")
    if ranks.rank == 0:
        ranks.note(f"{mode}: rank 0 ended with {status}, {ended - died:.1f} s after the death")


def main():
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    checks.need("torch")
    import torch
    if torch.cuda.device_count() == 0:
        checks.skip("there is no GPU")
    ranks = checks.Checks()
    ranks.run("calls reach Oriel", ranks.check_library)
    for mode in MODES:
        ranks.run(f"death of a rank, seen by {mode}", lambda mode=mode: check(ranks, mode))
    ranks.finish()


if __name__ == "__main__":
    main()

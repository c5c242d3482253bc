#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""The death of a rank. The last rank kills itself with SIGKILL while the others wait in an
all-reduce: they must get an error within seconds, by Work.wait or by PyTorch's watchdog.

A rank here is a child of the process that the launcher has started, which looks on: the launcher
itself would end the others as soon as one rank has died.
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
CAUGHT = 42  # exit status of a rank that has got its error as an exception
WRONG = 43  # the collective has ended without an error
# name -> (settings of PyTorch, exit statuses that are an error noticed)
MODES = {
    "wait": ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, [CAUGHT]),
    # The watchdog ends the process, four times this time after it has seen the error: PyTorch 2.11
    # leaves a minute for records to be written, wanted or not.
    "watchdog": ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}, [CAUGHT, -signal.SIGABRT]),
}


def child(mode):
    """One rank. A file with the name of the mode says that the last rank is about to die."""
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
        time.sleep(2)  # for the others to be inside the collective
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        work = dist.all_reduce(data, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        # The kernel ends as soon as the death is known; PyTorch's watchdog then has to say so.
        time.sleep(LONGEST_ERROR_S if mode == "watchdog" else 0)
    except RuntimeError as error:
        print(f"rank {rank} got {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        os._exit(CAUGHT)
    print(f"rank {rank}: the all-reduce has ended without an error", flush=True)
    os._exit(WRONG)


def start_child(mode, settings):
    """Runs a rank to its end: (exit status or None, time at which it ended)."""
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
    # Clocks agree, as all ranks are on one host.
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

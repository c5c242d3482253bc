#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Trains as accelerate_train.py does, with ranks that `accelerate launch` starts. The first process
of oriel-run becomes this launcher, and the other processes end at once. Its ranks inherit the
settings that load Oriel."""
import ctypes
import os
import pathlib
import signal
import sys

import accelerate_train
import checks
import torch_ranks

CLI = "accelerate.commands.accelerate_cli"  # the program `accelerate`
# Set by torch.distributed.run, which `accelerate launch` uses.
MARK = "TORCHELASTIC_RUN_ID"
PR_SET_PDEATHSIG = 1


def become_launcher():
    """Replaces this process by `accelerate launch` of this script."""
    checks.need("torch", "accelerate")
    if checks.gpu_count() == 0:
        checks.skip("there is no GPU")
    world, port = int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"]
    if world < 2:
        checks.skip("accelerate launch --multi_gpu needs two ranks")
    if os.environ["RANK"] != "0":
        sys.exit(0)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT"):
        del os.environ[name]  # the launcher must set them itself
    os.environ["HF_HOME"] = os.environ[checks.MEETING]  # without the user's default configuration
    os.execv(sys.executable, [
        sys.executable, "-m", CLI, "launch", "--multi_gpu", "--num_processes", str(world),
        "--num_machines", "1", "--main_process_port", port, "--mixed_precision", "no",
        "--dynamo_backend", "no", __file__])


def expect_launcher(ranks):
    """Checks that this rank is a child of `accelerate launch`, and has its environment."""
    command = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    ranks.expect(CLI in command and "launch" in command,
                 f"parent: expected accelerate launch, got {' '.join(command)[:200]}")
    ranks.expect(os.environ["LOCAL_RANK"] == os.environ["RANK"],
                 f"LOCAL_RANK: expected {os.environ['RANK']}, got {os.environ['LOCAL_RANK']}")
    ranks.expect("ACCELERATE_MIXED_PRECISION" in os.environ,
                 "ACCELERATE_MIXED_PRECISION: expected a value, got none")
    ranks.note(f"{ranks.world} ranks of accelerate launch")


def main():
    if MARK not in os.environ:
        become_launcher()
    # The launcher puts each rank into a session of its own, where run.py does not find it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    ranks, device = torch_ranks.start("accelerate")
    ranks.run("started by accelerate launch", lambda: expect_launcher(ranks))
    accelerate_train.run(ranks, device)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests that PyTorch loads Oriel: the import, the version, one all-reduce."""
import ctypes

import torch_ranks


def main():
    ranks, device = torch_ranks.start()
    import torch
    import torch.distributed as dist

    def version():
        number = ctypes.c_int()
        status = ctypes.CDLL(None).ncclGetVersion(ctypes.byref(number))
        ranks.expect(status == 0, f"ncclGetVersion returned {status}")
        seen = torch.cuda.nccl.version()
        major, minor, patch = (tuple(seen) + (0, 0, 0))[:3]
        ranks.note(f"PyTorch {torch.__version__}, torch.cuda.nccl.version() {seen}")
        ranks.expect(major * 10000 + minor * 100 + patch == number.value,
                     f"torch.cuda.nccl.version() is {seen}, ncclGetVersion says {number.value}")

    def all_reduce():
        torch_ranks.init(device)
        tensor = torch.full((1000,), float(ranks.rank + 1), device=device)
        dist.all_reduce(tensor)
        total = ranks.world * (ranks.world + 1) / 2
        torch_ranks.expect_same(ranks, tensor, torch.full((1000,), total), "all_reduce")

    ranks.run("version", version)
    ranks.run("all_reduce", all_reduce)
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()

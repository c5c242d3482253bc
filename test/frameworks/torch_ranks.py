# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts for PyTorch: the start of a rank, values, comparisons."""
import datetime
import hashlib
import os
import tempfile

import checks

TIMEOUT = datetime.timedelta(seconds=60)


def start(*modules):
    """Returns (Checks, the rank's device); skips without PyTorch, `modules` or a GPU."""
    checks.need("torch", *modules)
    import torch
    # Creates no CUDA context.
    if torch.cuda.device_count() == 0:
        checks.skip("there is no GPU")
    ranks = checks.Checks()
    device = torch.device("cuda", ranks.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    ranks.run("calls reach Oriel", ranks.check_library)
    return ranks, device


def init(device, **options):
    """Starts the default process group. With `device_id`, its communicator starts at once."""
    import torch.distributed as dist
    dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device, **options)


def close():
    import torch
    import torch.distributed as dist
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def ints(rank, count, seed=0, span=5, low=0):
    """Returns small integers, exact in every type. Neighbouring ranks have different ones."""
    import torch
    places = torch.arange(count, dtype=torch.int64)
    return (places * 7 + places // 11 + rank * 3 + seed * 5) % span + low


def convert(values, dtype):
    """Returns the values in a type. Complex ones have -2 times the real part as imaginary part."""
    import torch
    if dtype.is_complex:
        return (values.to(torch.float64) * (1 - 2j)).to(dtype)
    if dtype.is_floating_point and values.dtype == torch.int64:
        return values.to(torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)
    return values.to(dtype)


def is_float8(dtype):
    return str(dtype).startswith("torch.float8")


def comparable(tensor):
    """Returns a host copy in a real type that all of PyTorch's comparisons support."""
    import torch
    copy = tensor.detach().cpu()
    if copy.is_complex():
        return torch.view_as_real(copy)
    return copy.to(torch.float32) if is_float8(copy.dtype) else copy


def expect_same(ranks, got, expected, what, rtol=0.0):
    """Compares the values of tensors of one type: for equality, or within `rtol`."""
    import torch
    got, expected = comparable(got).reshape(-1), comparable(expected).reshape(-1)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return ranks.expect(False, f"{what}: expected {expected.dtype}{list(expected.shape)}, "
                                   f"got {got.dtype}{list(got.shape)}")
    if rtol == 0.0:
        wrong = got != expected
    else:
        wrong = ~torch.isclose(got.double(), expected.double(), rtol=rtol, atol=0.0)
    count = int(wrong.sum())
    if count == 0:
        return True
    place = int(wrong.nonzero()[0])
    return ranks.expect(False, f"{what}: {count} of {got.numel()} wrong, at {place} expected "
                               f"{expected[place].item()}, got {got[place].item()}")


class Guarded:
    """A contiguous view with `offset` guard elements in front of it and one behind it."""

    GUARD = 1

    def __init__(self, values, dtype, device, offset=0):
        self.dtype, self.offset = dtype, offset
        self.whole = self.with_guards(values).to(device)
        self.view = self.whole[offset:offset + values.numel()]

    def with_guards(self, values):
        import torch
        guard = torch.full((self.offset + 1,), self.GUARD, dtype=values.dtype)
        return convert(torch.cat([guard[:self.offset], values, guard[:1]]), self.dtype)

    def expect(self, ranks, values, what, rtol=0.0):
        expect_same(ranks, self.whole, self.with_guards(values),
                    f"{what} {str(self.dtype).removeprefix('torch.')} count {self.view.numel()} "
                    f"offset {self.offset}", rtol)


def sum_of_ranks(ranks, count, seed=0):
    """Returns the expected all-reduce of every rank's `ints`."""
    return sum(ints(rank, count, seed) for rank in range(ranks))


def floats(values, device):
    import torch
    return values.to(torch.float32).to(device)


def file_store(ranks, name):
    """Returns a store that does not use MASTER_PORT, for process groups after the first."""
    import torch.distributed as dist
    folder = ranks.folder or tempfile.mkdtemp(prefix="oriel-frameworks-")
    return dist.FileStore(os.path.join(folder, name), ranks.world)


def digest(tensors):
    """Returns a hash of the tensors' bits."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests every collective of torch.distributed over the backend nccl. Covers the types of
TYPES, several sizes, and views that do not begin at a multiple of 16 bytes. Values are small
integers, exact in every type, so all results but averages must equal the expected values."""
import torch_ranks
from torch_ranks import Guarded, expect_same, ints

# (elements, elements before the view): one element, odd, large, misaligned.
SHAPES = [(1, 0), (1001, 0), (1 << 16, 0), (1001, 1)]
TYPES = ("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool",
         "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
SCALE = 0.5
# PyTorch passes complex numbers on as pairs of real ones, and refuses operations that differ then.
COMPLEX_OPERATIONS = ("SUM", "AVG", "PREMUL_SUM")
COALESCED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
COALESCED_COUNTS = [1, 100, 1001, 3, 1 << 14] * 4


class Suite:
    """The collectives of one rank."""

    def __init__(self, ranks, device):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.ranks, self.device = torch, dist, ranks, device
        self.rank, self.world = ranks.rank, ranks.world
        self.types = [getattr(torch, name) for name in TYPES if hasattr(torch, name)]

    def span(self, dtype):
        """Returns the number of different values; few enough that sums over ranks stay exact."""
        return 2 if dtype == self.torch.bool or torch_ranks.is_float8(dtype) else 5

    def of(self, rank, count, dtype, seed=0):
        return ints(rank, count, seed, self.span(dtype))

    def put(self, values, dtype, offset=0):
        return Guarded(values, dtype, self.device, offset)

    def each(self, body):
        for dtype in self.types:
            for seed, (count, offset) in enumerate(SHAPES):
                body(dtype, count, offset, seed)

    def accepts(self, name, dtype, begin):
        """Starts a call. Returns False if PyTorch itself refuses a complex or 8-bit float type."""
        try:
            begin()
        except self.dist.DistBackendError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            if not torch_ranks.is_float8(dtype) and not dtype.is_complex:
                raise
            self.ranks.note(f"PyTorch refuses {name} of {dtype}: "
                            f"{str(error).splitlines()[0][:120]}")
            return False
        return True

    # Makes the inputs and the expected result of one reduction.
    def reduction(self, name, dtype, count, seed):
        """Returns (values by rank, expected result, operation, rtol); None if it does not exist."""
        op, flat = self.dist.ReduceOp, self.span(dtype)
        boolean = dtype == self.torch.bool
        real = dtype.to_real() if dtype.is_complex else dtype
        low, span, times = 0, flat, 1
        if name == "PRODUCT" and not boolean:
            low, span = 1, 2
        if name == "AVG":
            if boolean or torch_ranks.is_float8(dtype) or self.world ** 2 > 127:
                return None
            span, times = 2, self.world  # makes the average a whole number
        if name == "PREMUL_SUM" and real not in (
                self.torch.float16, self.torch.float32, self.torch.float64):
            return None
        values = self.torch.stack([times * ints(rank, count, seed, span, low)
                                   for rank in range(self.world)])
        if boolean:
            least = name in ("PRODUCT", "MIN")
            return values, values.amin(0) if least else values.amax(0), getattr(op, name), 0.0
        results = {"SUM": lambda: values.sum(0), "PRODUCT": lambda: values.prod(0),
                   "MIN": lambda: values.amin(0), "MAX": lambda: values.amax(0),
                   "AVG": lambda: values.sum(0) // self.world,
                   "PREMUL_SUM": lambda: values.sum(0).double() * SCALE}
        how = (self.dist._make_nccl_premul_sum(SCALE) if name == "PREMUL_SUM"
               else getattr(op, name))
        # An average may be computed as a product with a rounded 1 / world.
        digits = {self.torch.float64: 1e-14, self.torch.float32: 1e-6, self.torch.float16: 4e-3}
        rtol = digits.get(real, 3e-2) if name == "AVG" and real.is_floating_point else 0.0
        return values, results[name](), how, rtol

    def all_reduce(self, name):
        def one(dtype, count, offset, seed):
            asked = self.reduction(name, dtype, count, seed)
            if asked is None:
                return
            values, expected, how, rtol = asked
            data = self.put(values[self.rank], dtype, offset)
            what = f"all_reduce {name}"
            accepted = self.accepts(what, dtype, lambda: self.dist.all_reduce(data.view, op=how))
            if dtype.is_complex:
                self.ranks.expect(accepted == (name in COMPLEX_OPERATIONS),
                                  f"{what} of {dtype}: accepted is {accepted}")
            if accepted:
                data.expect(self.ranks, expected, what, rtol)
        self.each(one)

    def reduce(self):
        def one(dtype, count, offset, seed):
            values, expected, how, _ = self.reduction("SUM", dtype, count, seed)
            root = seed % self.world
            data = self.put(values[self.rank], dtype, offset)
            if self.accepts("reduce", dtype, lambda: self.dist.reduce(data.view, root, op=how)) \
                    and self.rank == root:
                data.expect(self.ranks, expected, f"reduce to {root}")
        self.each(one)

    def broadcast(self):
        def one(dtype, count, offset, seed):
            root = (seed + 1) % self.world
            data = self.put(self.of(self.rank, count, dtype, seed), dtype, offset)
            self.dist.broadcast(data.view, root)
            data.expect(self.ranks, self.of(root, count, dtype, seed), f"broadcast of {root}")
        self.each(one)

    def all_gather(self):
        def one(dtype, count, offset, seed):
            sources = [self.of(rank, count, dtype, seed) for rank in range(self.world)]
            data = self.put(sources[self.rank], dtype, offset)
            parts = [self.put(0 * part, dtype, offset) for part in sources]
            self.dist.all_gather([part.view for part in parts], data.view)
            for part, source in zip(parts, sources):
                part.expect(self.ranks, source, "all_gather")
            whole = self.put(self.torch.zeros(count * self.world, dtype=self.torch.int64), dtype,
                             offset)
            self.dist.all_gather_into_tensor(whole.view, data.view)
            whole.expect(self.ranks, self.torch.cat(sources), "all_gather_into_tensor")
        self.each(one)

    def reduce_scatter(self):
        def one(dtype, count, offset, seed):
            values, expected, how, _ = self.reduction("SUM", dtype, count * self.world, seed)
            own = expected[self.rank * count:(self.rank + 1) * count]
            data = self.put(values[self.rank], dtype, offset)
            for name, source in (("reduce_scatter_tensor", data.view),
                                 ("reduce_scatter", list(data.view.chunk(self.world)))):
                got = self.put(0 * own, dtype, offset)
                call = getattr(self.dist, name)
                if self.accepts(name, dtype, lambda: call(got.view, source, op=how)):
                    got.expect(self.ranks, own, name)
        self.each(one)

    def all_to_all(self):
        def one(dtype, count, offset, seed):
            sent = [[self.of(source * self.world + target, count, dtype, seed)
                     for target in range(self.world)] for source in range(self.world)]
            received = [sent[source][self.rank] for source in range(self.world)]
            data = self.put(self.torch.cat(sent[self.rank]), dtype, offset)
            got = self.put(0 * self.torch.cat(received), dtype, offset)
            self.dist.all_to_all_single(got.view, data.view)
            got.expect(self.ranks, self.torch.cat(received), "all_to_all_single")
            parts = [self.put(0 * part, dtype, offset) for part in received]
            self.dist.all_to_all([part.view for part in parts],
                                 list(data.view.chunk(self.world)))
            for part, expected in zip(parts, received):
                part.expect(self.ranks, expected, "all_to_all")
        self.each(one)

    def all_to_all_uneven(self):
        def length(source, target, count):  # 0 for some pairs of ranks
            return count * ((source + 2 * target) % 3)

        def one(dtype, count, offset, seed):
            def part(source, target):
                return self.of(source * self.world + target, length(source, target, count), dtype,
                               seed)
            everyone = range(self.world)
            sent = [part(self.rank, target) for target in everyone]
            received = [part(source, self.rank) for source in everyone]
            data = self.put(self.torch.cat(sent), dtype, offset)
            got = self.put(0 * self.torch.cat(received), dtype, offset)
            self.dist.all_to_all_single(got.view, data.view, [p.numel() for p in received],
                                        [p.numel() for p in sent])
            got.expect(self.ranks, self.torch.cat(received), "all_to_all_single, uneven")
        self.each(one)

    def gather_scatter(self):
        def one(dtype, count, offset, seed):
            root = seed % self.world
            sources = [self.of(rank, count, dtype, seed) for rank in range(self.world)]
            data = self.put(sources[self.rank], dtype, offset)
            parts = [self.put(0 * part, dtype, offset) for part in sources]
            at_root = self.rank == root
            gathered = self.accepts("gather", dtype, lambda: self.dist.gather(
                data.view, [p.view for p in parts] if at_root else None, dst=root))
            got = self.put(0 * sources[0], dtype, offset)
            outgoing = [self.put(part, dtype, offset).view for part in sources]
            self.dist.scatter(got.view, outgoing if at_root else None, src=root)
            got.expect(self.ranks, sources[self.rank], f"scatter from {root}")
            for part, source in zip(parts, sources) if at_root and gathered else ():
                part.expect(self.ranks, source, f"gather to {root}")
        self.each(one)

    def asynchronous(self):
        """Starts several collectives on one group, and waits for them in another order."""
        tensors = [self.put(ints(self.rank, count, seed), self.torch.float32)
                   for seed, (count, _) in enumerate(SHAPES)]
        works = [self.dist.all_reduce(data.view, async_op=True) for data in tensors]
        gathered = self.torch.zeros(self.world * 7, device=self.device)
        own = ints(self.rank, 7).to(self.torch.float32).to(self.device)
        works.append(self.dist.all_gather_into_tensor(gathered, own, async_op=True))
        for work in reversed(works):
            work.wait()
        for seed, data in enumerate(tensors):
            data.expect(self.ranks, sum(ints(rank, data.view.numel(), seed)
                                        for rank in range(self.world)), "async all_reduce")
        expected = self.torch.cat([ints(rank, 7) for rank in range(self.world)]).float()
        expect_same(self.ranks, gathered, expected, "async all_gather_into_tensor")

    def coalesced_calls(self, name):
        """Returns the arguments, the result and the expected values of several calls."""
        calls = []
        for seed, count in enumerate(COALESCED_COUNTS):
            blocks = self.world if name in ("reduce_scatter_tensor", "all_to_all_single") else 1
            inputs = [ints(rank, blocks * count, seed) for rank in range(self.world)]
            own = slice(self.rank * count, (self.rank + 1) * count)
            expected = {"all_reduce": lambda: sum(inputs),
                        "all_gather_into_tensor": lambda: self.torch.cat(inputs),
                        "reduce_scatter_tensor": lambda: sum(inputs)[own],
                        "all_to_all_single": lambda: self.torch.cat([part[own] for part in inputs])
                        }[name]()
            data = self.put(inputs[self.rank], self.torch.float32)
            got = data if name == "all_reduce" else self.put(0 * expected, self.torch.float32)
            calls.append(((got.view,) if got is data else (got.view, data.view), got, expected))
        return calls

    def coalesced(self):
        """Makes each kind of call in a coalescing manager, and by PyTorch's functions for lists."""
        import torch.distributed._functional_collectives as functional

        def compare(calls, what):
            for _, got, expected in calls:
                got.expect(self.ranks, expected, what)
        for name in COALESCED:
            for async_op in (False, True):
                calls = self.coalesced_calls(name)
                with self.dist._coalescing_manager(device=self.device,
                                                   async_ops=async_op) as manager:
                    for tensors, _, _ in calls:
                        getattr(self.dist, name)(*tensors, async_op=async_op)
                if async_op:
                    manager.wait()
                compare(calls, f"{name} in a _coalescing_manager, async_ops={async_op}")
        calls = self.coalesced_calls("all_reduce")
        self.dist.all_reduce_coalesced([tensors[0] for tensors, _, _ in calls])
        compare(calls, "all_reduce_coalesced")
        world, dims = self.dist.group.WORLD, [0] * len(COALESCED_COUNTS)
        for name, call in (
                ("all_gather_into_tensor",
                 lambda own: functional.all_gather_into_tensor_coalesced(own, world)),
                ("reduce_scatter_tensor",
                 lambda own: functional.reduce_scatter_tensor_coalesced(own, "sum", dims, world))):
            calls = self.coalesced_calls(name)
            results = call([tensors[1] for tensors, _, _ in calls])
            for got, (_, _, expected) in zip(map(functional.wait_tensor, results), calls):
                expect_same(self.ranks, got, expected.float(), f"functional {name}_coalesced")

    def barrier(self):
        for _ in range(5):
            self.dist.barrier()
        work = self.dist.barrier(async_op=True)
        work.wait()
        self.torch.cuda.synchronize()


def main():
    ranks, device = torch_ranks.start()
    suite = Suite(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"):
        ranks.run(f"all_reduce {name}", lambda name=name: suite.all_reduce(name))
    for name in ("reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
                 "all_to_all_uneven", "gather_scatter", "asynchronous", "coalesced", "barrier"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()

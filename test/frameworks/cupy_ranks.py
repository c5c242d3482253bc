# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts for CuPy: values, comparisons, NCCL's names of types."""

COUNTS = (1, 1001, 1 << 16)
# Type characters of numpy.
TYPES = "bBiIlLefd"
NAMES = {"b": "INT8", "B": "UINT8", "i": "INT32", "I": "UINT32", "l": "INT64", "L": "UINT64",
         "e": "FLOAT16", "f": "FLOAT32", "d": "FLOAT64"}


class Values:
    """Values of the ranks of one communicator, and their comparison."""

    FACTORS = 4  # ranks that multiply by up to 3: the product, 81, is exact in every type

    def __init__(self, ranks, world):
        import cupy
        import numpy
        from cupy.cuda import nccl
        self.cupy, self.numpy, self.nccl, self.ranks, self.world = cupy, numpy, nccl, ranks, world

    def ints(self, rank, count, seed=0):
        places = self.numpy.arange(count)
        return (places * 7 + places // 11 + rank * 3 + seed * 5) % 5

    def everyone(self, count, seed=0):
        return self.numpy.stack([self.ints(rank, count, seed) for rank in range(self.world)])

    def factors(self, rank, count):
        ints = self.ints(rank, count)
        return ints % 3 + 1 if rank < self.FACTORS else 0 * ints + 1

    def product(self, count):
        return self.numpy.stack([self.factors(rank, count)
                                 for rank in range(self.world)]).prod(0)

    def put(self, values, dtype="f"):
        return self.cupy.asarray(self.numpy.asarray(values).astype(dtype))

    def expect(self, got, expected, what):
        got, expected = got.get().astype("d"), self.numpy.asarray(expected).astype("d")
        wrong = self.numpy.flatnonzero((got != expected).reshape(-1))
        if len(wrong):
            place = wrong[0]
            self.ranks.expect(False, f"{what}: {len(wrong)} of {got.size} wrong, at {place} "
                                     f"expected {expected.flat[place]}, got {got.flat[place]}")

    def code(self, dtype):
        return getattr(self.nccl, f"NCCL_{NAMES[dtype]}")

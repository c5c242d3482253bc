# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""client.py LIBRARY: two ranks in separate processes open LIBRARY by its path and add four numbers.
The wheels of Python frameworks open it in the same way."""
import ctypes
import multiprocessing
import sys

FLOAT, SUM, RANKS, COUNT = 7, 0, 2, 4


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def run(path, rank, id_bytes, results):
    nccl = ctypes.CDLL(path)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                   ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    version, comm = ctypes.c_int(), ctypes.c_void_p()
    nccl.ncclGetVersion(ctypes.byref(version))
    data = (ctypes.c_float * COUNT)(*(10 * rank + i for i in range(COUNT)))
    status = nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, UniqueId.from_buffer_copy(id_bytes),
                                   rank)
    if status == 0:
        status = nccl.ncclAllReduce(data, data, COUNT, FLOAT, SUM, comm, None)
    results.put((rank, version.value, status, list(data)))


def main():
    path = sys.argv[1]
    unique_id = UniqueId()
    ctypes.CDLL(path).ncclGetUniqueId(ctypes.byref(unique_id))
    spawn = multiprocessing.get_context("spawn")  # children inherit no state
    results = spawn.Queue()
    ranks = [spawn.Process(target=run, args=(path, rank, bytes(unique_id), results))
             for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for result in sorted(results.get(timeout=60) for _ in ranks):
        print(*result)
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()

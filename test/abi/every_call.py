# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""every_call.py LIBRARY RANKS HEADER: calls every function of nccl.h through ctypes.

Checks each result. The 2 to 8 ranks are processes with host memory. Prints the rank, call, expected
and actual result of each failure. If no rank has failed, also prints functions that are declared
and not called, or called and not declared. Exits with 1 if there was any of these.
[req:5.20]
"""
import ctypes
import os
import re
import signal
import sys
import time

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, RESULTS = 0, 4, 5, 6, 7, 8
SUM, PROD, MAX, MIN, AVG, PREMUL_SUM = range(6)  # ncclRedOpCreatePreMulSum makes PREMUL_SUM
INT32, FLOAT32, TYPES = 2, 7, 12
# ctypes types by ncclDataType_t. NARROW: (mantissa bits, bias) of floats that ctypes lacks.
STORED = (ctypes.c_int8, ctypes.c_uint8, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64,
          ctypes.c_uint64, ctypes.c_uint16, ctypes.c_float, ctypes.c_double, ctypes.c_uint16,
          ctypes.c_uint8, ctypes.c_uint8)
NARROW = {6: (10, 15), 9: (7, 127), 10: (3, 7), 11: (2, 15)}
NO_COLOR, UNDEFINED, VERSION, PAGE, MOST_RANKS = -1, -2 ** 31, 22809, 4096, 8
COUNT, LARGE_COUNT, MESSAGE, GUARD, SECONDS = 37, 3000, 4096, 16, 200
KINDS = ("AllReduce", "ReduceScatter", "Reduce", "AllGather", "Broadcast", "Bcast", "AlltoAll",
         "Gather", "Scatter")
REDUCTIONS = KINDS[:3]
ROOTED = ("Reduce", "Broadcast", "Bcast", "Gather", "Scatter")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.28, with the values of NCCL_CONFIG_INITIALIZER."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cgaClusterSize", ctypes.c_int),
                ("minCTAs", ctypes.c_int), ("maxCTAs", ctypes.c_int), ("netName", ctypes.c_char_p),
                ("splitShare", ctypes.c_int), ("trafficClass", ctypes.c_int),
                ("commName", ctypes.c_char_p)]
    _fields_ += [(name, ctypes.c_int) for name in (
        "collnetEnable", "CTAPolicy", "shrinkShare", "nvlsCTAs", "nChannelsPerNetPeer",
        "nvlinkCentricSched")]

    def __init__(self, **values):
        hints = {name: UNDEFINED for name, kind in self._fields_ if kind is ctypes.c_int}
        super().__init__(size=ctypes.sizeof(Config), magic=0xcafebeef, version=VERSION,
                         **{**hints, **values})


class SimInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("estimatedTime", ctypes.c_float)]


# Parameters of each function: p is a pointer or handle, i an int, z a size_t, u a UniqueId.
SIGNATURES = {name: letters for letters, names in (
    ("", "ResetDebugInit GroupStart GroupEnd"),
    ("i", "GetErrorString"),
    ("p", "GetVersion GetUniqueId CommFinalize CommDestroy CommAbort MemFree GetLastError "
          "GroupSimulateEnd"),
    ("pp", "CommGetAsyncError CommCount CommCuDevice CommUserRank CommDeregister "
           "CommWindowDeregister DevCommDestroy"),
    ("ppp", "DevCommCreate"), ("pi", "CommRevoke"), ("ip", "RedOpDestroy"), ("pz", "MemAlloc"),
    ("piui", "CommInitRank"), ("piuip", "CommInitRankConfig"), ("piiipp", "CommInitRankScalable"),
    ("pip", "CommInitAll"), ("piipp", "CommSplit"), ("ppippi", "CommShrink"),
    ("ppzp", "CommRegister"), ("ppzpi", "CommWindowRegister"), ("ppiip", "RedOpCreatePreMulSum"),
    ("ppziipp", "AllReduce ReduceScatter Broadcast Gather Scatter"), ("ppziiipp", "Reduce"),
    ("ppzipp", "AllGather AlltoAll"), ("pziipp", "Bcast Send Recv")) for name in names.split()}
LETTERS = {"p": ctypes.c_void_p, "i": ctypes.c_int, "z": ctypes.c_size_t, "u": UniqueId}


class UnexpectedResult(Exception):
    """Raised if a call's result is unexpected. Ends the rank, because its peers would wait."""


class Nccl:
    """The library of one rank. Odd ranks call pncclX instead of ncclX."""

    def __init__(self, path, rank, size):
        self.library = ctypes.CDLL(path)
        self.rank, self.size = rank, size
        self.called = set()
        self.failures = 0

    def call(self, name, *arguments):
        whole = ("p" if self.rank % 2 else "") + "nccl" + name
        function = getattr(self.library, whole)
        function.argtypes = [LETTERS[letter] for letter in SIGNATURES[name]]
        text = name in ("GetErrorString", "GetLastError")
        function.restype = ctypes.c_char_p if text else ctypes.c_int
        self.called.add(whole)
        result = function(*arguments)
        return result.decode() if text else result

    def expect(self, expected, name, *arguments):
        self.require(expected, name, self.call(name, *arguments))

    def must(self, name, *arguments):
        self.expect(SUCCESS, name, *arguments)

    def require(self, expected, name, result):
        if result == expected:
            return
        raise UnexpectedResult(f"nccl{name}: expected {expected}, got {result}: "
                               + self.call("GetLastError", None))

    def compare(self, what, expected, actual):
        if expected == actual:
            return
        self.failures += 1
        print(f"rank {self.rank}: {what}: expected {expected}, got {actual}", file=sys.stderr)

    def expect_word(self, word):
        text = self.call("GetLastError", None)
        self.compare(f'ncclGetLastError has "{word}": "{text}"', True, word in text)

    def must_later(self, comm, name, *arguments):
        """Makes a call on a non-blocking communicator, and waits for its background work."""
        result = self.call(name, *arguments)
        if result != IN_PROGRESS:
            self.require(SUCCESS, name, result)
        self.require(SUCCESS, name + " in the background", self.wait_while(comm, IN_PROGRESS))

    def wait_while(self, comm, state):
        """Polls for 30 s at most until the communicator leaves `state`; returns its state."""
        now, deadline = ctypes.c_int(state), time.monotonic() + 30
        while now.value == state and time.monotonic() < deadline:
            self.must("CommGetAsyncError", comm, ctypes.byref(now))
            time.sleep(0.001)
        return now.value

    def check_place(self, comm, rank, size):
        for name, expected in (("CommCount", size), ("CommUserRank", rank), ("CommCuDevice", -1)):
            value = ctypes.c_int(-2)
            self.must(name, comm, ctypes.byref(value))
            self.compare("nccl" + name, expected, value.value)

    def check_sum(self, comm, size):
        value = ctypes.c_int32(1)
        place = ctypes.byref(value)
        self.must("AllReduce", place, place, 1, INT32, SUM, comm, None)
        self.compare("sum of ones", size, value.value)


def stored(kind, value):
    """Returns the ctypes value that encodes a small integer in an element of type `kind`."""
    if kind not in NARROW or value == 0:
        return value
    mantissa_bits, bias = NARROW[kind]
    exponent = value.bit_length() - 1
    return ((exponent + bias - 1) << mantissa_bits) + ((value << mantissa_bits) >> exponent)


class Case:
    """One collective on one rank's buffers. All values are exact in every type."""

    def __init__(self, name, kind, op, root, count, in_place):
        self.name, self.kind, self.op, self.root, self.count = name, kind, op, root, count
        self.in_place = in_place

    def given(self, rank, i):
        at = i if self.op == AVG else i + 5 * rank
        if self.op == PROD:
            return 2 if at % 3 == 0 else 1
        return at % (2 if self.kind >= 10 else 9)

    def reduced(self, size, i):
        values = [self.given(rank, i) * (1 + rank % 2 if self.op == PREMUL_SUM else 1)
                  for rank in range(size)]
        if self.op == PROD:
            return 2 ** values.count(2)
        if self.op in (MAX, MIN):
            return max(values) if self.op == MAX else min(values)
        return sum(values) // size if self.op == AVG else sum(values)

    def result(self, rank, size, i):
        own = rank * self.count
        if self.name in REDUCTIONS:
            return self.reduced(size, own + i if self.name == "ReduceScatter" else i)
        if self.name in ("AllGather", "Gather"):
            return self.given(i // self.count, i % self.count)
        if self.name == "AlltoAll":
            return self.given(i // self.count, own + i % self.count)
        return self.given(self.root, own + i if self.name == "Scatter" else i)

    def run(self, member, op):
        """Makes the call; checks every element, and that nothing behind the output changed."""
        nccl, rank, size = member.nccl, member.rank, member.size
        kind, width = STORED[self.kind], ctypes.sizeof(STORED[self.kind])
        given = self.count * (size if self.name in ("ReduceScatter", "AlltoAll", "Scatter") else 1)
        taken = self.count * (size if self.name in ("AllGather", "AlltoAll", "Gather") else 1)
        has_input = rank == self.root or self.name not in ("Broadcast", "Bcast", "Scatter")
        has_output = rank == self.root or self.name not in ("Reduce", "Gather")
        source, target, used = member.input, member.output, taken
        if ((self.in_place or self.name == "Bcast") and self.name != "AlltoAll" and has_input
                and has_output):
            own = rank * self.count * width
            source = target + (own if taken > given else 0)
            target += own if given > taken else 0
            used = max(given, taken)
        ctypes.memset(member.output, 0x55, used * width + GUARD)
        if has_input:
            (kind * given).from_address(source)[:] = [stored(self.kind, self.given(rank, i))
                                                      for i in range(given)]
        buffers = (target,) if self.name == "Bcast" else (source, target)
        extra = ((op,) if self.name in REDUCTIONS else ()) + (
            (self.root,) if self.name in ROOTED else ())
        nccl.must(self.name, *buffers, self.count, self.kind, *extra, member.comm, None)
        what = f"nccl{self.name} {vars(self)}"
        end = member.output + used * width
        if has_output:
            actual = list((kind * taken).from_address(target))
            for i in range(taken):
                expected = stored(self.kind, self.result(rank, size, i))
                if actual[i] != expected:
                    nccl.compare(f"{what} element {i}", expected, actual[i])
                    break
        untouched = end if has_output else member.output
        rest = ctypes.string_at(untouched, end + GUARD - untouched)
        nccl.compare(what + " behind the output", b"\x55" * len(rest), rest)


class Member:
    """One rank of a communicator, with two buffers."""

    def __init__(self, nccl, comm, rank, size):
        self.nccl, self.comm, self.rank, self.size = nccl, comm, rank, size
        self.input = self.output = 0

    def use(self, address, size_bytes):
        self.input, self.output = address, address + size_bytes

    def check_collectives(self, quick):
        for kind in range(0, TYPES, 3 if quick else 1):
            for op in (SUM, PREMUL_SUM) if quick else range(6):
                self.check_reduction(kind, op)
            for number, name in enumerate(KINDS[3:]):
                in_place = (kind + number) % 2
                Case(name, kind, SUM, kind % self.size, COUNT, in_place).run(self, SUM)
        for number, name in enumerate([] if quick else KINDS):
            Case(name, FLOAT32, SUM, self.size - 1, LARGE_COUNT, number % 2).run(self, SUM)

    def check_reduction(self, kind, op):
        """Runs one of three reductions. Each meets all types and operations, but not all pairs."""
        made = ctypes.c_int(op)
        if op == PREMUL_SUM:
            scalar = STORED[kind](stored(kind, 1 + self.rank % 2))
            self.nccl.must("RedOpCreatePreMulSum", ctypes.byref(made), ctypes.byref(scalar), kind,
                           kind % 2, self.comm)
        name = REDUCTIONS[(kind + op) % len(REDUCTIONS)]
        Case(name, kind, op, kind % self.size, COUNT, (kind // 3 + op) % 2).run(self, made)
        if op == PREMUL_SUM:
            self.nccl.must("RedOpDestroy", made, self.comm)

    def check_point_to_point(self):
        for hop in range(self.size):  # rings; hop 0: each rank to itself
            self.exchange([((self.rank + hop) % self.size, MESSAGE)],
                          [((self.rank - hop) % self.size, MESSAGE)])
        peers = [peer for peer in range(self.size) for _ in range(2)]  # two messages per pair
        self.exchange([(peer, self.rank * 3 + peer) for peer in peers],
                      [(peer, peer * 3 + self.rank) for peer in peers])
        self.send_in_turn()
        self.check_groups()

    def exchange(self, sends, receives):
        """Exchanges messages in one group; element i of each is 1000 * sender + receiver + i."""
        elements = ctypes.c_int32 * (2 * self.size * MESSAGE)
        outgoing, incoming = elements.from_address(self.input), elements.from_address(self.output)
        self.nccl.must("GroupStart")
        places = []
        for calls, buffer, name in ((sends, outgoing, "Send"), (receives, incoming, "Recv")):
            at = 0
            for peer, count in calls:
                if name == "Send":
                    buffer[at:at + count] = [1000 * self.rank + peer + i for i in range(count)]
                else:
                    buffer[at:at + count + 1] = [-1] * (count + 1)
                    places.append((at, peer, count))
                self.nccl.must(name, ctypes.addressof(buffer) + 4 * at, count, INT32, peer,
                               self.comm, None)
                at += count + 1
        self.nccl.must("GroupEnd")
        for at, peer, count in places:
            expected = [1000 * peer + self.rank + i for i in range(count)] + [-1]
            self.nccl.compare(f"ncclRecv of {count} from {peer}", expected,
                              incoming[at:at + count + 1])

    def send_in_turn(self):
        """Passes a message from rank 0 along all ranks, without a group."""
        message = (ctypes.c_int32 * MESSAGE).from_address(self.output)
        message[:] = range(MESSAGE) if self.rank == 0 else [0] * MESSAGE
        call = (self.output, MESSAGE, INT32)
        if self.rank > 0:
            self.nccl.must("Recv", *call, self.rank - 1, self.comm, None)
        self.nccl.compare("ncclRecv in turn", list(range(MESSAGE)), list(message))
        if self.rank + 1 < self.size:
            self.nccl.must("Send", *call, self.rank + 1, self.comm, None)

    def check_groups(self):
        nccl, value = self.nccl, ctypes.c_int32(7)
        all_reduce = ("AllReduce", ctypes.byref(value), ctypes.byref(value), 1, INT32, SUM,
                      self.comm, None)
        info = SimInfo(ctypes.sizeof(SimInfo), 0x74685283, VERSION, 3)
        nccl.must("GroupStart")
        nccl.must("GroupStart")
        nccl.must(*all_reduce)
        nccl.must("GroupEnd")
        nccl.compare("value before the outer ncclGroupEnd", 7, value.value)
        nccl.must("GroupEnd")
        nccl.compare("value of a nested group", 7 * self.size, value.value)
        value.value = 7
        nccl.must("GroupStart")
        nccl.must(*all_reduce)
        nccl.must("GroupSimulateEnd", ctypes.byref(info))
        nccl.compare("ncclGroupSimulateEnd's estimate is a time", True,
                     0 < info.estimatedTime < 1000)
        nccl.must("GroupStart")
        nccl.expect(INVALID_ARGUMENT, "Send", ctypes.byref(value), 1, INT32, self.size, self.comm,
                    None)
        nccl.must(*all_reduce)
        nccl.expect(INVALID_ARGUMENT, "GroupEnd")
        nccl.expect_word("peer")
        nccl.compare("value after groups without effect", 7, value.value)
        nccl.expect(INVALID_USAGE, "GroupEnd")
        nccl.expect_word("ncclGroupStart")


def check_versions_and_texts(nccl):
    version, ids = ctypes.c_int(), (UniqueId(), UniqueId())
    nccl.must("GetVersion", ctypes.byref(version))
    nccl.compare("ncclGetVersion", VERSION, version.value)
    nccl.expect(INVALID_ARGUMENT, "GetVersion", None)
    nccl.expect_word("version")
    nccl.call("ResetDebugInit")
    for unique_id in ids:
        nccl.must("GetUniqueId", ctypes.byref(unique_id))
    nccl.compare("two unique ids are equal", False, bytes(ids[0]) == bytes(ids[1]))
    texts = {nccl.call("GetErrorString", result) for result in range(RESULTS + 1)}
    nccl.compare("different texts of results", RESULTS + 1, len(texts - {""}))


def check_on_memory(nccl, comm):
    """Runs the checks on plain and registered memory, then in windows at unequal and equal offsets.
    """
    member = Member(nccl, comm, nccl.rank, nccl.size)
    size_bytes = (8 * nccl.size * MESSAGE + GUARD + PAGE) // PAGE * PAGE
    ordinary = ctypes.create_string_buffer(2 * size_bytes + PAGE)
    handle, memory = ctypes.c_void_p(), ctypes.c_void_p()
    member.use(ctypes.addressof(ordinary) // PAGE * PAGE + PAGE, size_bytes)
    member.check_collectives(quick=False)
    member.check_point_to_point()
    nccl.must("CommRegister", comm, member.input, 2 * size_bytes, ctypes.byref(handle))
    member.check_collectives(quick=True)
    nccl.must("CommDeregister", comm, handle)
    nccl.expect(INVALID_ARGUMENT, "CommDeregister", comm, handle)
    nccl.must("MemAlloc", ctypes.byref(memory), 2 * size_bytes + MOST_RANKS * PAGE)
    nccl.compare("ncclMemAlloc's alignment", 0, memory.value % PAGE)
    for symmetric in (0, 1):
        windows = (ctypes.c_void_p(), ctypes.c_void_p())
        member.use(memory.value + (0 if symmetric else nccl.rank * PAGE), size_bytes)
        nccl.must("GroupStart")
        for window, buffer in zip(windows, (member.input, member.output)):
            nccl.must("CommWindowRegister", comm, buffer, size_bytes, ctypes.byref(window),
                      symmetric)
        nccl.must("GroupEnd")
        member.check_collectives(quick=True)
        member.check_point_to_point()
        nccl.expect(INVALID_USAGE, "MemFree", memory)
        for window in windows:
            nccl.must("CommWindowDeregister", comm, window)
        nccl.expect(INVALID_ARGUMENT, "CommWindowDeregister", comm, windows[0])
    nccl.must("MemFree", memory)
    nccl.expect(INVALID_ARGUMENT, "MemAlloc", ctypes.byref(memory), 0)


def check_refusals(nccl, comm):
    value, child = ctypes.c_int32(1), ctypes.c_void_p(1)
    place = ctypes.byref(value)
    for name, arguments in (("CommShrink", (place, 1, ctypes.byref(child), None, 0)),
                            ("DevCommCreate", (None, None)), ("DevCommDestroy", (None,))):
        nccl.expect(INVALID_USAGE, name, comm, *arguments)
        nccl.expect_word("nccl" + name)
    nccl.compare("ncclCommShrink's communicator", None, child.value)
    for kind, op, target in ((TYPES, SUM, comm), (INT32, PREMUL_SUM, comm), (INT32, SUM, None)):
        nccl.expect(INVALID_ARGUMENT, "AllReduce", place, place, 1, kind, op, target, None)
        nccl.expect_word("ncclAllReduce")
    nccl.expect(INVALID_ARGUMENT, "Broadcast", place, place, 1, INT32, nccl.size, comm, None)
    nccl.expect_word("root")
    nccl.expect(INVALID_ARGUMENT, "CommRevoke", comm, 1)
    nccl.must("CommDestroy", None)
    nccl.check_sum(comm, nccl.size)


def check_splits(nccl, comm):
    """Splits: reversed ranks; no color for rank 0; pairs, whose own child outlives them."""
    rank, size, child, grandchild = nccl.rank, nccl.size, ctypes.c_void_p(), ctypes.c_void_p()
    place, pair_size = ctypes.byref(child), 2 if rank // 2 * 2 + 1 < size else 1
    nccl.must("CommSplit", comm, 2 ** 31 - 1, -rank, place, None)
    nccl.check_place(child, size - 1 - rank, size)
    nccl.must("CommDestroy", child)
    nccl.must("CommSplit", comm, 1 if rank else NO_COLOR, 5, place, None)
    nccl.compare("a communicator without color is null", rank == 0, child.value is None)
    if rank:
        nccl.check_sum(child, size - 1)
        nccl.must("CommDestroy", child)
    config = Config(splitShare=1, commName=b"pair")
    nccl.must("CommSplit", comm, 7 + rank // 2 * 1000003, rank - 2 ** 31, place,
              ctypes.byref(config))
    nccl.check_place(child, rank % 2, pair_size)
    nccl.must("CommSplit", child, 0, 1 - rank % 2, ctypes.byref(grandchild), None)
    nccl.must("CommDestroy", child)
    nccl.check_sum(grandchild, pair_size)
    nccl.must("CommDestroy", grandchild)
    nccl.expect(INVALID_ARGUMENT, "CommSplit", comm, -2, 0, place, None)
    nccl.expect_word("color")


def check_plain(nccl, unique_id):
    comm, value = ctypes.c_void_p(), ctypes.c_int()
    start = (ctypes.byref(comm), nccl.size, unique_id)
    nccl.expect(INVALID_ARGUMENT, "CommInitRank", *start, nccl.size)
    nccl.expect_word("rank")
    nccl.must("CommInitRank", *start, nccl.rank)
    nccl.check_place(comm, nccl.rank, nccl.size)
    check_on_memory(nccl, comm)
    check_refusals(nccl, comm)
    check_splits(nccl, comm)
    nccl.must("CommFinalize", comm)
    nccl.check_place(comm, nccl.rank, nccl.size)
    nccl.expect(INVALID_USAGE, "AllReduce", ctypes.byref(value), ctypes.byref(value), 1, INT32, SUM,
                comm, None)
    nccl.must("CommDestroy", comm)
    nccl.expect(INVALID_ARGUMENT, "CommCount", comm, ctypes.byref(value))
    nccl.expect_word("no communicator")


def check_starts(nccl, ids):
    """Starts with a config, with two unique ids, and with all ranks in this process."""
    comm, config = ctypes.c_void_p(), Config(blocking=1, minCTAs=1, maxCTAs=4, commName=b"every")
    place = ctypes.byref(comm)
    nccl.must("CommInitRankConfig", place, nccl.size, ids[0], nccl.rank, ctypes.byref(config))
    nccl.check_place(comm, nccl.rank, nccl.size)
    nccl.check_sum(comm, nccl.size)
    nccl.must("CommDestroy", comm)
    both = (UniqueId * 2)(ids[1], ids[2])
    nccl.must("CommInitRankScalable", place, nccl.size, nccl.rank, 2, both, None)
    nccl.check_place(comm, nccl.rank, nccl.size)
    nccl.check_sum(comm, nccl.size)
    nccl.must("CommDestroy", comm)
    comms, sums = (ctypes.c_void_p * nccl.size)(), (ctypes.c_int32 * nccl.size)(*range(nccl.size))
    nccl.expect(INVALID_ARGUMENT, "CommInitAll", comms, nccl.size, sums)
    nccl.expect_word("devlist")
    nccl.must("CommInitAll", comms, nccl.size, None)
    nccl.must("GroupStart")
    for i in range(nccl.size):
        nccl.check_place(comms[i], i, nccl.size)
        at = ctypes.addressof(sums) + 4 * i
        nccl.must("AllReduce", at, at, 1, INT32, SUM, comms[i], None)
    nccl.must("GroupEnd")
    nccl.compare("sums of one process", [sum(range(nccl.size))] * nccl.size, list(sums))
    for one in comms:
        nccl.must("CommDestroy", one)


def check_non_blocking(nccl, unique_id):
    comm, child, memory, window = (ctypes.c_void_p() for _ in range(4))
    nccl.must_later(comm, "CommInitRankConfig", ctypes.byref(comm), nccl.size, unique_id, nccl.rank,
                    ctypes.byref(Config(blocking=0)))
    nccl.check_place(comm, nccl.rank, nccl.size)
    nccl.check_sum(comm, nccl.size)
    nccl.must("MemAlloc", ctypes.byref(memory), PAGE)
    nccl.must_later(comm, "CommWindowRegister", comm, memory, PAGE, ctypes.byref(window), 1)
    nccl.compare("the window is null", False, window.value is None)
    nccl.must_later(comm, "CommSplit", comm, 3, nccl.rank, ctypes.byref(child), None)
    nccl.compare("the child's state", SUCCESS, nccl.wait_while(child, IN_PROGRESS))
    nccl.check_sum(child, nccl.size)
    nccl.must("CommDestroy", child)
    nccl.must("CommWindowDeregister", comm, window)
    nccl.must("MemFree", memory)
    nccl.must_later(comm, "CommFinalize", comm)
    nccl.must("CommDestroy", comm)


def check_ends(nccl, unique_id):
    """Rank 0 aborts one communicator and revokes another; its peers detect this and do likewise."""
    comms, value = (ctypes.c_void_p(), ctypes.c_void_p()), ctypes.c_int32(1)
    nccl.must("CommInitRank", ctypes.byref(comms[0]), nccl.size, unique_id, nccl.rank)
    nccl.must("CommSplit", comms[0], 0, 0, ctypes.byref(comms[1]), None)
    for comm, revokes in ((comms[1], False), (comms[0], True)):
        nccl.check_sum(comm, nccl.size)
        if nccl.rank:
            nccl.compare("state when a rank ended", REMOTE_ERROR, nccl.wait_while(comm, SUCCESS))
            nccl.compare("the error names rank 0", True,
                         "rank 0" in nccl.call("GetLastError", comm))
        if revokes:
            nccl.must("CommRevoke", comm, 0)
            nccl.compare("state when revoked", SUCCESS, nccl.wait_while(comm, IN_PROGRESS))
            nccl.check_place(comm, nccl.rank, nccl.size)
            nccl.expect(INVALID_USAGE, "CommRevoke", comm, 0)
            nccl.expect(REMOTE_ERROR if nccl.rank else INVALID_USAGE, "AllReduce",
                        ctypes.byref(value), ctypes.byref(value), 1, INT32, SUM, comm, None)
        nccl.must("CommAbort", comm)
        nccl.expect(INVALID_ARGUMENT, "CommUserRank", comm, ctypes.byref(value))


def run_rank(nccl, ids):
    try:
        check_versions_and_texts(nccl)
        check_plain(nccl, ids[0])
        check_starts(nccl, ids[1:4])
        check_non_blocking(nccl, ids[4])
        check_ends(nccl, ids[5])
    except UnexpectedResult as failure:
        nccl.failures += 1
        print(f"rank {nccl.rank}: {failure}", file=sys.stderr)


def fork_rank(path, rank, size):
    """Forks a rank that reads the unique ids from one pipe and writes the calls it made to another.

    Returns the parent's ends of both pipes. The library is not loaded before the fork.
    """
    (ids_end, ids_pipe), (notes_pipe, notes_end) = os.pipe(), os.pipe()
    if os.fork() > 0:
        os.close(ids_end)
        os.close(notes_end)
        return ids_pipe, notes_pipe
    status = 1
    try:
        os.close(ids_pipe)
        signal.alarm(SECONDS)
        with open(ids_end, "rb") as source:
            data = source.read(6 * 128)
        nccl = Nccl(path, rank, size)
        run_rank(nccl, [UniqueId.from_buffer_copy(data, 128 * i) for i in range(6)])
        with open(notes_end, "w", encoding="ascii") as target:
            target.write(" ".join(nccl.called))
        status = 1 if nccl.failures else 0
    except Exception as error:  # a failure of the test itself
        print(f"rank {rank}: {error!r}", file=sys.stderr)
    finally:
        os._exit(status)
    return None


def declared_functions(header):
    with open(header, encoding="utf-8") as source:
        lines = [line for line in source if not line.startswith(("//", "#"))]
    return set(re.findall(r"\bp?nccl\w+(?=\()", "".join(lines)))


def main():
    path, size, header = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if not 2 <= size <= MOST_RANKS:
        sys.exit(f"2 to {MOST_RANKS} ranks, not {size}")
    pipes = [fork_rank(path, rank, size) for rank in range(size)]
    nccl, ids = Nccl(path, 0, size), [UniqueId() for _ in range(6)]
    for unique_id in ids:
        nccl.must("GetUniqueId", ctypes.byref(unique_id))
    for ids_pipe, _ in pipes:
        os.write(ids_pipe, b"".join(map(bytes, ids)))
    called = set()
    for _, notes_pipe in pipes:
        with open(notes_pipe, encoding="ascii") as source:
            called |= set(source.read().split())
    failed = sum(os.wait()[1] != 0 for _ in pipes)
    declared = declared_functions(header)
    if not failed and (called != declared or not declared):
        failed = 1
        print(f"declared and not called: {sorted(declared - called)}; called and not declared: "
              f"{sorted(called - declared)}", file=sys.stderr)
    sys.exit("every_call.py: failed" if failed else 0)


if __name__ == "__main__":
    main()

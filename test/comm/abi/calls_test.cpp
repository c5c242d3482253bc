// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// Tests the basic functions of the C interface: results, refused arguments with their error texts,
/// and that a refused call leaves nothing behind.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr int kCycles = 3 + repeats(1000, 25);

TEST_CASE("queries answer, and refuse null pointers", "[req:1.31]") {
  run_alone([] {
    int version = 0;
    require(ncclGetVersion(&version), "ncclGetVersion");
    require(version == 22809, "the version");
    expect_error(ncclGetVersion(nullptr), ncclInvalidArgument, "ncclGetVersion", {"version"});
    expect_error(ncclGetUniqueId(nullptr), ncclInvalidArgument, "ncclGetUniqueId", {"null"});

    ncclComm_t comm = init_alone();
    int value = -7;
    require(ncclCommCount(comm, &value), "ncclCommCount");
    require(value == 1, "the count");
    require(ncclCommUserRank(comm, &value), "ncclCommUserRank");
    require(value == 0, "the rank");
    require(ncclCommCuDevice(comm, &value), "ncclCommCuDevice");
    require(value == -1, "the device of a host rank");
    require(state_of(comm) == ncclSuccess, "the asynchronous error");

    expect_error(ncclCommCount(comm, nullptr), ncclInvalidArgument, "ncclCommCount", {"count"});
    expect_error(ncclCommUserRank(comm, nullptr), ncclInvalidArgument, "ncclCommUserRank");
    expect_error(ncclCommCuDevice(comm, nullptr), ncclInvalidArgument, "ncclCommCuDevice");
    expect_error(ncclCommGetAsyncError(comm, nullptr), ncclInvalidArgument, "async error");
    expect_error(ncclCommCount(nullptr, &value), ncclInvalidArgument, "ncclCommCount", {"null"});
    ncclResult_t state = ncclSuccess;
    expect_error(ncclCommGetAsyncError(nullptr, &state), ncclInvalidArgument, "async error");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("every result has a text, and each thread reads only its own last error", "[req:1.31]") {
  run_alone([] {
    for (int result = -1; result <= 9; ++result) {
      const char* text = ncclGetErrorString(static_cast<ncclResult_t>(result));
      require(text != nullptr && *text != '\0', "ncclGetErrorString");
      const char* twin = pncclGetErrorString(static_cast<ncclResult_t>(result));
      require(std::strcmp(text, twin) == 0, "the twin's words");
    }
    require(std::string(ncclGetLastError(nullptr)).empty(), "no error yet");
    expect_error(ncclCommInitRank(nullptr, 1, ncclUniqueId{}, 0), ncclInvalidArgument,
                 "ncclCommInitRank", {"ncclCommInitRank", "comm is null"});
    // Each thread has its own error text.
    std::string elsewhere = "?";
    std::thread([&] { elsewhere = ncclGetLastError(nullptr); }).join();
    require(elsewhere.empty(), "another thread's error text: " + elsewhere);
    int value = 0;
    expect_error(pncclGetVersion(nullptr), ncclInvalidArgument, "pncclGetVersion");
    require(pncclGetVersion(&value), "pncclGetVersion");
  });
}

TEST_CASE("a destroyed communicator is refused by every call", "[req:1.32][req:1.38]") {
  run_alone([] {
    for (const bool by_abort : {false, true}) {
      ncclComm_t comm = init_alone();
      Buffer buffer(4096);
      require(by_abort ? ncclCommAbort(comm) : ncclCommDestroy(comm), "the end");
      int value = 0;
      ncclResult_t state;
      ncclWindow_t window = nullptr;
      ncclRedOp_t op;
      float scalar = 2;
      const std::vector<std::string> words = {"no communicator", "destroyed"};
      const auto refused = [&](ncclResult_t result, const char* call) {
        expect_error(result, ncclInvalidArgument, call, words);
      };
      refused(ncclCommCount(comm, &value), "ncclCommCount");
      refused(ncclCommUserRank(comm, &value), "ncclCommUserRank");
      refused(ncclCommCuDevice(comm, &value), "ncclCommCuDevice");
      refused(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      refused(ncclCommFinalize(comm), "ncclCommFinalize");
      refused(ncclCommDestroy(comm), "ncclCommDestroy");
      refused(ncclCommAbort(comm), "ncclCommAbort");
      refused(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0), "register");
      refused(ncclCommWindowDeregister(comm, reinterpret_cast<ncclWindow_t>(&value)), "deregister");
      refused(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comm),
              "ncclRedOpCreatePreMulSum");
      refused(ncclRedOpDestroy(static_cast<ncclRedOp_t>(7), comm), "ncclRedOpDestroy");
      refused(sum(&scalar, 1, comm), "ncclAllReduce");
      require_words(ncclGetLastError(comm), {"no communicator"});
      // The table slot is reused, but the old handle stays invalid.
      ncclComm_t next = init_alone();
      require(next != comm, "a handle is not given twice");
      refused(ncclCommCount(comm, &value), "ncclCommCount");
      require(ncclCommDestroy(next), "ncclCommDestroy");
    }
    int value = 0;
    expect_error(ncclCommCount(reinterpret_cast<ncclComm_t>(&value), &value), ncclInvalidArgument,
                 "a pointer to anything");
    require(ncclCommDestroy(nullptr), "ncclCommDestroy of null");
    require(ncclCommAbort(nullptr), "ncclCommAbort of null");
    expect_error(ncclCommFinalize(nullptr), ncclInvalidArgument, "ncclCommFinalize of null");
  });
}

TEST_CASE("memory calls refuse what they cannot do", "[req:1.38]") {
  run_alone([] {
    void* pointer = &pointer;
    expect_error(ncclMemAlloc(nullptr, 4096), ncclInvalidArgument, "ncclMemAlloc", {"null"});
    expect_error(ncclMemAlloc(&pointer, 0), ncclInvalidArgument, "ncclMemAlloc", {"0 bytes"});
    require(pointer == nullptr, "a failed allocation leaves null");
    expect_error(ncclMemAlloc(&pointer, SIZE_MAX), ncclInvalidArgument, "ncclMemAlloc");
    require(ncclMemFree(nullptr), "ncclMemFree of null");
    int anything = 0;
    expect_error(ncclMemFree(&anything), ncclInvalidArgument, "ncclMemFree", {"ncclMemAlloc"});
    require(ncclMemAlloc(&pointer, 1), "ncclMemAlloc");
    require(reinterpret_cast<std::uintptr_t>(pointer) % NCCL_WIN_REQUIRED_ALIGNMENT == 0,
            "aligned");
    expect_error(ncclMemFree(static_cast<char*>(pointer) + 1), ncclInvalidArgument, "ncclMemFree");
    require(ncclMemFree(pointer), "ncclMemFree");
    expect_error(ncclMemFree(pointer), ncclInvalidArgument, "a second ncclMemFree");
  });
}

TEST_CASE("an all-reduce refuses what it cannot do, and goes on", "[req:1.38]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    std::array<float, 64> in{}, out{};
    in[3] = 4;
    const auto call = [&](const void* from, void* to, std::size_t count, int type, int op,
                          void* stream = nullptr) {
      return ncclAllReduce(from, to, count, static_cast<ncclDataType_t>(type),
                           static_cast<ncclRedOp_t>(op), comm, static_cast<cudaStream_t>(stream));
    };
    const auto refused = [&](ncclResult_t result, const std::vector<std::string>& words) {
      expect_error(result, ncclInvalidArgument, "ncclAllReduce", words);
    };
    refused(call(nullptr, out.data(), 8, ncclFloat, ncclSum), {"sendbuff", "null"});
    refused(call(in.data(), nullptr, 8, ncclFloat, ncclSum), {"recvbuff", "null"});
    refused(call(in.data(), out.data(), 8, ncclNumTypes, ncclSum), {"datatype", "12"});
    refused(call(in.data(), out.data(), 8, -1, ncclSum), {"datatype", "-1"});
    refused(call(in.data(), out.data(), 8, ncclFloat, ncclNumOps), {"5"});
    refused(call(in.data(), out.data(), 8, ncclFloat, -1), {"-1"});
    refused(call(in.data(), out.data(), 8, ncclFloat, INT_MAX), {"reduction"});
    refused(call(in.data(), out.data(), SIZE_MAX / 2, ncclFloat, ncclSum), {"count"});
    refused(call(in.data(), in.data() + 1, 8, ncclFloat, ncclSum), {"overlap"});
    refused(call(reinterpret_cast<char*>(in.data()) + 2, out.data(), 8, ncclFloat, ncclSum),
            {"sendbuff", "aligned"});
    refused(call(in.data(), reinterpret_cast<char*>(out.data()) + 1, 8, ncclFloat, ncclSum),
            {"recvbuff", "aligned"});
    refused(call(in.data(), out.data(), 8, ncclFloat, ncclSum, &in), {"stream", "null"});
    require(call(nullptr, nullptr, 0, ncclFloat, ncclSum), "a count of 0");
    require(call(in.data(), in.data() + 8, 8, ncclFloat, ncclSum), "adjacent buffers");
    require(call(in.data(), out.data(), 64, ncclFloat, ncclSum), "after all that");
    require(out == in, "the result of one rank");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a pre-multiplied sum works only for its communicator and type, until destroyed",
          "[req:1.31]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    ncclComm_t other = init_alone();
    double scalar = 3;
    ncclRedOp_t op;
    const auto create = [&](ncclRedOp_t* out, void* value, int type, int residence) {
      return ncclRedOpCreatePreMulSum(out, value, static_cast<ncclDataType_t>(type),
                                      static_cast<ncclScalarResidence_t>(residence), comm);
    };
    expect_error(create(nullptr, &scalar, ncclDouble, 0), ncclInvalidArgument, "create", {"op"});
    expect_error(create(&op, nullptr, ncclDouble, 0), ncclInvalidArgument, "create", {"scalar"});
    expect_error(create(&op, &scalar, 12, 0), ncclInvalidArgument, "create", {"12"});
    expect_error(create(&op, &scalar, ncclDouble, 2), ncclInvalidArgument, "create", {"residence"});
    require(create(&op, &scalar, ncclDouble, ncclScalarHostImmediate), "create");
    scalar = 100;  // the scalar was read before create() returned
    double in = 2;
    double out = 0;
    const auto reduce = [&](ncclRedOp_t by, ncclDataType_t type, ncclComm_t on) {
      return ncclAllReduce(&in, &out, 1, type, by, on, nullptr);
    };
    require(reduce(op, ncclDouble, comm), "ncclAllReduce");
    require(out == 6, "2 x 3");
    expect_error(reduce(op, ncclFloat, comm), ncclInvalidArgument, "another type", {"f64", "f32"});
    expect_error(reduce(op, ncclDouble, other), ncclInvalidArgument, "another communicator",
                 {"reduction"});
    expect_error(ncclRedOpDestroy(op, other), ncclInvalidArgument, "another communicator");
    ncclRedOp_t later;
    require(create(&later, &scalar, ncclDouble, ncclScalarDevice), "create");
    scalar = 5;  // a device scalar is read at each call
    require(reduce(later, ncclDouble, comm), "ncclAllReduce");
    require(out == 10, "2 x 5");
    require(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
    expect_error(ncclRedOpDestroy(op, comm), ncclInvalidArgument, "a second destroy");
    expect_error(reduce(op, ncclDouble, comm), ncclInvalidArgument, "a destroyed operation",
                 {"destroyed"});
    expect_error(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, "a built-in one");
    require(ncclCommDestroy(other), "ncclCommDestroy");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a bad registration is every rank's error and leaves nothing", "[req:1.38][req:1.16]") {
  run_in_all_modes(3, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<Buffer> buffers;
    for (std::size_t i = 0; i < comms.size(); ++i) buffers.emplace_back(1 << 20);
    test_ranks.barrier();
    const Held before = settled();
    test_ranks.barrier();
    // Mistakes of rank 1; the other ranks call correctly.
    std::vector<char> foreign(1 << 16);
    const auto page = (reinterpret_cast<std::uintptr_t>(foreign.data()) + 4095) / 4096 * 4096;
    struct Misuse {
      const char* name;
      std::optional<void*> pointer;  // empty: the buffer's own address
      std::size_t skip, bytes;
      int flags;
      std::vector<std::string> words;
      bool has_place = true;
    };
    const Misuse misuses[] = {
        {"null", nullptr, 0, 65536, 1, {"null"}},
        {"size 0", {}, 0, 0, 1, {"0"}},
        {"past the end", {}, 0, 8 << 20, 1, {"8388608"}},
        {"misaligned", {}, 8, 65536, 1, {"4096"}},
        {"malloc", reinterpret_cast<void*>(page), 0, 4096, 1, {"ncclMemAlloc"}},
        {"no place for the window", {}, 0, 65536, 1, {"win", "null"}, false},
        {"unknown flags", {}, 0, 65536, 0x40, {"flag"}},
        {"another size", {}, 0, 131072, 1, {"size"}},
        {"other flags", {}, 0, 65536, 0, {"flags"}},
    };
    for (const Misuse& wrong : misuses) {
      std::vector<ncclWindow_t> windows(comms.size(), nullptr);
      const ncclResult_t result = test_ranks.together([&](std::size_t i, int rank) {
        if (rank != 1) {
          return ncclCommWindowRegister(comms[i], buffers[i].at(), 65536, &windows[i], 1);
        }
        void* const pointer = wrong.pointer.value_or(buffers[i].at(wrong.skip));
        if (wrong.has_place) windows[i] = reinterpret_cast<ncclWindow_t>(&foreign);
        return ncclCommWindowRegister(comms[i], pointer, wrong.bytes,
                                      wrong.has_place ? &windows[i] : nullptr, wrong.flags);
      });
      for (ncclWindow_t window : windows) {
        require(window == nullptr, std::string(wrong.name) + ": a window was given out");
      }
      require(result == ncclInvalidArgument || result == ncclInvalidUsage, wrong.name);
      require_words(ncclGetLastError(nullptr), wrong.words);
      require_words(ncclGetLastError(nullptr), {"rank"});
      test_ranks.barrier();
      require_held(before, wrong.name);
      test_ranks.barrier();
    }
    require(ncclGroupStart(), "ncclGroupStart");
    std::vector<ncclWindow_t> windows(2 * comms.size(), nullptr);
    for (std::size_t i = 0; i < comms.size(); ++i) {
      for (std::size_t k = 0; k < (test_ranks.ranks()[i] == 1 ? 2 : 1); ++k) {
        require(ncclCommWindowRegister(comms[i], buffers[i].at(), 4096, &windows[2 * i + k], 1),
                "note");
      }
    }
    expect_error(ncclGroupEnd(), ncclInvalidUsage, "another number of windows");
    test_ranks.barrier();
    require_held(before, "another number of windows");
    test_ranks.barrier();
    // The communicators work as before.
    std::vector<void*> pointers;
    for (const Buffer& buffer : buffers) pointers.push_back(buffer.at());
    const auto good = test_ranks.register_windows(comms, pointers, 65536);
    for (std::size_t i = 0; i < comms.size(); ++i) {
      require(ncclCommWindowDeregister(comms[i], good[i]), "deregister");
      expect_error(ncclCommWindowDeregister(comms[i], good[i]), ncclInvalidArgument,
                   "a second deregistration", {"window"});
      expect_error(ncclCommWindowDeregister(comms[i], nullptr), ncclInvalidArgument, "null");
    }
    test_ranks.destroy(comms);
  });
}

TEST_CASE("a window of another communicator is refused", "[req:1.38]") {
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    auto first = test_ranks.init();
    auto second = test_ranks.init();
    Buffer buffer(65536);
    const auto window = test_ranks.register_windows(first, {buffer.at()}, 65536)[0];
    expect_error(ncclCommWindowDeregister(second[0], window), ncclInvalidArgument,
                 "a window of another communicator", {"window"});
    ncclWindow_t out;
    require(ncclCommWindowRegister(second[0], buffer.at(), 65536, &out, 1), "in both");
    require(ncclCommWindowDeregister(second[0], out), "deregister");
    require(ncclCommWindowDeregister(first[0], window), "deregister");
    test_ranks.destroy(first);
    test_ranks.destroy(second);
  }));
}

TEST_CASE("ranks end two communicators in opposite orders", "[req:5.16]") {
  run_in_all_modes(2, [](TestRanks& test_ranks) {
    if (test_ranks.ranks().size() > 1) return;  // one thread has only one order
    const std::array<std::vector<ncclComm_t>, 2> comms = {test_ranks.init(), test_ranks.init()};
    for (int turn = 0; turn < 2; ++turn) {
      const ncclComm_t comm = comms[static_cast<std::size_t>(test_ranks.first() ^ turn)][0];
      require(ncclCommFinalize(comm), "ncclCommFinalize");
      require(state_of(comm) == ncclSuccess, "the state after ncclCommFinalize");
      require(ncclCommDestroy(comm), "ncclCommDestroy");
      test_ranks.barrier();
    }
  });
}

TEST_CASE("after finalize only queries and the end are allowed", "[req:1.38]") {
  run_in_all_modes(2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    require(test_ranks.together([&](std::size_t i, int) { return ncclCommFinalize(comms[i]); }),
            "ncclCommFinalize");
    float value = 1;
    ncclWindow_t window = nullptr;
    Buffer buffer(4096);
    int rank = -1;
    for (ncclComm_t comm : comms) {
      expect_error(sum(&value, 1, comm), ncclInvalidUsage, "ncclAllReduce", {"finalized"});
      expect_error(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0), ncclInvalidUsage,
                   "ncclCommWindowRegister", {"finalized"});
      expect_error(ncclCommFinalize(comm), ncclInvalidUsage, "ncclCommFinalize", {"finalized"});
      require(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
    }
    test_ranks.destroy(comms);
  });
}

TEST_CASE("after many cycles of create and destroy a process holds what it held after three",
          "[promise:3]") {
  for (const LaunchMode launch_mode : kLaunchModes) {
    INFO(name_of(launch_mode));
    check_all_ok(run_ranks(
        launch_mode, 2,
        [launch_mode](TestRanks& test_ranks) {
          Held third{};
          const int cycles = launch_mode == LaunchMode::processes ? kCycles : kCycles / 10;
          for (int cycle = 1; cycle <= cycles; ++cycle) {
            auto comms = test_ranks.init();
            std::vector<Buffer> buffers;
            std::vector<void*> pointers;
            for (std::size_t i = 0; i < comms.size(); ++i) {
              pointers.push_back(buffers.emplace_back(65536).at());
            }
            test_ranks.register_windows(comms, pointers, 65536);
            require(test_ranks.together([&](std::size_t i, int) {
              return ncclAllReduce(pointers[i], pointers[i], 1000, ncclFloat, ncclSum, comms[i],
                                   nullptr);
            }),
                    "ncclAllReduce");
            test_ranks.destroy(comms);
            buffers.clear();
            test_ranks.barrier();
            if (cycle == 3) third = settled();
            test_ranks.barrier();
            if (cycle == cycles) require_held(third, fmt::format("cycle {}", cycle));
            test_ranks.barrier();
          }
        },
        100s));
  }
}

}  // namespace
}  // namespace oriel::test

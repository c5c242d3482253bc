// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// The ordered list of a group: requests that advance together, the first error, and mixtures of
/// all requests.
namespace oriel::test {
namespace {

TEST_CASE("set-up of several communicators in a group advances together, whatever its kinds",
          "[req:5.2]") {
  const Environment brief(Variables{{"ORIEL_TIMEOUT", "4s"}});
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    auto first = test_ranks.init(), second = test_ranks.init();
    const ncclUniqueId id = test_ranks.next_id();
    const Buffer buffer(4096);
    ncclWindow_t window = nullptr;
    ncclComm_t child = nullptr, other = nullptr;
    const auto grouped = test_ranks.first() == 0;
    // Without a group, rank 1 registers first, then splits, and starts last.
    if (grouped) require(ncclGroupStart(), "ncclGroupStart");
    const auto start = [&] {
      require(ncclCommInitRank(&other, 2, id, test_ranks.first()), "ncclCommInitRank");
    };
    if (grouped) start();
    if (grouped) require(ncclCommSplit(first[0], 0, 0, &child, nullptr), "ncclCommSplit");
    require(ncclCommWindowRegister(second[0], buffer.at(), 4096, &window, 1), "a window");
    if (!grouped) require(ncclCommSplit(first[0], 0, 0, &child, nullptr), "ncclCommSplit");
    if (!grouped) start();
    if (grouped) require(ncclGroupEnd(), "ncclGroupEnd");
    require(window != nullptr && child != nullptr && other != nullptr, "what was asked for");
    for (ncclComm_t comm : {child, other, first[0], second[0]}) {
      float value = 1;
      require(sum(&value, 1, comm), "ncclAllReduce");
      require(value == 2, "the sum");
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    }
  }));
}

TEST_CASE("the error of a group is that of the first failed call in the order of the calls",
          "[req:5.2]") {
  run_alone([] {
    const Buffer buffer(4096);
    for (const bool window_first : {false, true}) {
      const ncclComm_t revoked = init_alone();
      const ncclComm_t good = init_alone();
      ncclWindow_t window = nullptr;
      float value = 1;
      const auto register_badly = [&] {
        require(ncclCommWindowRegister(good, buffer.at(8), 64, &window, 1), "note");
      };
      require(ncclGroupStart(), "ncclGroupStart");
      if (window_first) register_badly();
      require(sum(&value, 1, revoked), "note");
      if (!window_first) register_badly();
      require(ncclCommFinalize(revoked), "note");
      require(ncclCommRevoke(revoked, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
      if (window_first) {
        expect_error(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd", {"not a multiple"});
      } else {
        expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", {"ncclCommRevoke"});
      }
      require(ncclCommDestroy(revoked), "ncclCommDestroy");
      require(ncclCommDestroy(good), "ncclCommDestroy");
    }
  });
}

TEST_CASE("a failed query, allocation or local registration leaves its group as it is",
          "[req:5.2]") {
  run_alone([] {
    const ncclComm_t comm = init_alone();
    int sentinel = 0;
    int* const null = nullptr;
    void* handle = nullptr;
    ncclWindow_t const no_window = nullptr;
    ncclRedOp_t op = ncclSum;
    ncclComm_t none = nullptr;
    ncclResult_t state = ncclSuccess;
    auto* const bad = reinterpret_cast<ncclComm_t>(&sentinel);
    const std::vector<std::pair<const char*, std::function<ncclResult_t()>>> calls = {
        {"ncclGetVersion", [&] { return ncclGetVersion(nullptr); }},
        {"ncclGetUniqueId", [&] { return ncclGetUniqueId(nullptr); }},
        {"ncclCommCount", [&] { return ncclCommCount(bad, &sentinel); }},
        {"ncclCommUserRank", [&] { return ncclCommUserRank(comm, null); }},
        {"ncclCommCuDevice", [&] { return ncclCommCuDevice(nullptr, &sentinel); }},
        {"ncclCommGetAsyncError", [&] { return ncclCommGetAsyncError(bad, &state); }},
        {"ncclMemAlloc", [&] { return ncclMemAlloc(&handle, 0); }},
        {"ncclMemFree", [&] { return ncclMemFree(&sentinel); }},
        {"ncclCommRegister", [&] { return ncclCommRegister(comm, nullptr, 8, &handle); }},
        {"ncclCommDeregister", [&] { return ncclCommDeregister(comm, &sentinel); }},
        {"ncclCommWindowDeregister", [&] { return ncclCommWindowDeregister(comm, no_window); }},
        {"ncclRedOpCreatePreMulSum",
         [&] { return ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat, ncclScalarDevice, comm); }},
        {"ncclRedOpDestroy", [&] { return ncclRedOpDestroy(ncclSum, comm); }},
        {"ncclCommRevoke", [&] { return ncclCommRevoke(comm, 7); }},
        {"ncclCommShrink", [&] { return ncclCommShrink(comm, null, 0, &none, nullptr, 0); }},
        {"ncclCommDestroy", [&] { return ncclCommDestroy(bad); }},
        {"ncclCommAbort", [&] { return ncclCommAbort(bad); }},
    };
    for (const auto& [name, call] : calls) {
      float from = 3, to = 0;
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclAllReduce(&from, &to, 1, ncclFloat, ncclSum, comm, nullptr), "note");
      const ncclResult_t result = call();
      require(result == ncclInvalidArgument || result == ncclInvalidUsage, name);
      require(ncclGroupEnd(), name);
      require(to == 3, fmt::format("the all-reduce beside a failed {}", name));
    }
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

enum class Kind { reduce, exchange, window, split, start, local, query, nest, destroy, abort };

/// One request. Both ranks make the same requests, except for nested ones.
struct Request {
  Kind kind;
  ncclUniqueId id{};  // for Kind::start
};

/// One of two communicators, with the requests and results of a group.
struct Slot {
  ncclComm_t comm = nullptr;
  std::deque<Request> requests{};
  float value = 1;  // doubled by each all-reduce
  std::size_t reductions = 0;
  std::deque<float> received{};
  std::deque<ncclComm_t> made{};  // made by splits and starts
  std::deque<ncclWindow_t> windows{};
  std::deque<Buffer> buffers{};
  bool ends = false;
};

/// One rank of both communicators. Reference: collectives run before exchanges, set-up completes,
/// and ends come last. A refused group only ends handles.
class MixedRank {
 public:
  MixedRank(TestRanks& test_ranks, std::uint64_t seed)
      : test_ranks_(test_ranks),
        rank_(test_ranks.first()),
        shared_(static_cast<std::mt19937::result_type>(seed)),
        own_(static_cast<std::mt19937::result_type>(seed) + 1 + static_cast<unsigned>(rank_)) {
    for (Slot& slot : slots_) slot.comm = test_ranks_.init()[0];
  }

  void run_group() {
    const bool is_refused = shared_() % 6 == 0;
    for (Slot& slot : slots_) draw(slot);
    const std::array<ncclComm_t, 2> comms = {slots_[0].comm, slots_[1].comm};
    require(ncclGroupStart(), "ncclGroupStart");
    // Each rank picks its own order of the communicators.
    while (!slots_[0].requests.empty() || !slots_[1].requests.empty()) {
      Slot& slot = slots_[own_() % 2];
      if (slot.requests.empty()) continue;
      note(slot, slot.requests.front());
      slot.requests.pop_front();
    }
    if (is_refused) {
      expect_error(ncclAllReduce(nullptr, nullptr, 1, ncclNumTypes, ncclSum, comms[0], nullptr),
                   ncclInvalidArgument, "the bad call");
    }
    for (; depth_ > 0; --depth_) require(ncclGroupEnd(), "an inner end");
    const ncclResult_t result = ncclGroupEnd();
    require(result == (is_refused ? ncclInvalidArgument : ncclSuccess),
            fmt::format("the group: {}", ncclGetLastError(nullptr)));
    for (Slot& slot : slots_) compare(slot, is_refused);
    test_ranks_.barrier();  // an abort in the next group would end the other rank's calls
  }
  void end() {
    for (const Slot& slot : slots_) require(ncclCommDestroy(slot.comm), "ncclCommDestroy");
  }

 private:
  void draw(Slot& slot) {
    slot = Slot{.comm = slot.comm};
    constexpr Kind kKinds[] = {Kind::reduce, Kind::reduce, Kind::exchange, Kind::exchange,
                               Kind::window, Kind::window, Kind::split,    Kind::start,
                               Kind::local,  Kind::query,  Kind::nest,     Kind::nest};
    for (auto left = shared_() % 9; left > 0; --left) {
      const Kind kind = kKinds[shared_() % std::size(kKinds)];
      slot.requests.push_back({kind, kind == Kind::start ? test_ranks_.next_id() : ncclUniqueId{}});
    }
    const auto end = shared_() % 8;
    slot.ends = end < 2;
    if (end == 0) slot.requests = {{Kind::abort}};
    if (end == 1) slot.requests.push_back({Kind::destroy});
  }

  void note(Slot& slot, const Request& request) {
    switch (request.kind) {
      case Kind::reduce:
        ++slot.reductions;
        return require(sum(&slot.value, 1, slot.comm), "ncclAllReduce");
      case Kind::exchange: {
        float& place = slot.received.emplace_back(0.0f);
        const int peer = 1 - rank_;
        require(ncclRecv(&place, 1, ncclFloat, peer, slot.comm, nullptr), "ncclRecv");
        return require(ncclSend(&slot.value, 1, ncclFloat, peer, slot.comm, nullptr), "ncclSend");
      }
      case Kind::window: {
        void* const memory = slot.buffers.emplace_back(4096).at();
        ncclWindow_t& place = slot.windows.emplace_back(nullptr);
        return require(ncclCommWindowRegister(slot.comm, memory, 4096, &place, 1), "a window");
      }
      case Kind::split:
        return require(
            ncclCommSplit(slot.comm, 0, rank_, &slot.made.emplace_back(nullptr), nullptr),
            "ncclCommSplit");
      case Kind::start:
        return require(ncclCommInitRank(&slot.made.emplace_back(nullptr), 2, request.id, rank_),
                       "ncclCommInitRank");
      case Kind::local: {
        void* handle = nullptr;
        require(ncclCommRegister(slot.comm, &slot.value, 4, &handle), "ncclCommRegister");
        return require(ncclCommDeregister(slot.comm, handle), "ncclCommDeregister");
      }
      case Kind::query:
        return require(ncclCommCount(slot.comm, nullptr) == ncclInvalidArgument, "a bad query");
      case Kind::nest:
        return nest();
      case Kind::destroy:
        return require(ncclCommDestroy(slot.comm), "ncclCommDestroy");
      case Kind::abort:
        return require(ncclCommAbort(slot.comm), "ncclCommAbort");
    }
  }
  void nest() {
    if (own_() % 2 == 0) {
      ++depth_;
      require(ncclGroupStart(), "an inner group");
    } else if (depth_ > 0) {
      --depth_;
      require(ncclGroupEnd(), "an inner end");
    }
  }

  void compare(Slot& slot, bool is_refused) {
    const float expected = is_refused ? 1.0f : static_cast<float>(1u << slot.reductions);
    require(slot.value == expected, fmt::format("the sum is {} for {}", slot.value, expected));
    for (const float value : slot.received) {
      require(value == (is_refused ? 0.0f : expected), fmt::format("{} was received", value));
    }
    for (ncclWindow_t window : slot.windows) {
      require((window == nullptr) == is_refused, "a window");
      if (window == nullptr || slot.ends) continue;
      require(ncclCommWindowDeregister(slot.comm, window), "ncclCommWindowDeregister");
    }
    for (ncclComm_t made : slot.made) {
      require((made == nullptr) == is_refused, "a new communicator");
      if (made == nullptr) continue;
      float value = 1;
      require(sum(&value, 1, made), "an all-reduce of a new communicator");
      require(value == 2, "its sum");
      require(ncclCommDestroy(made), "ncclCommDestroy");
    }
    int count = 0;
    const ncclResult_t state = ncclCommCount(slot.comm, &count);
    require(state == (slot.ends ? ncclInvalidArgument : ncclSuccess), "the handle");
    if (slot.ends) slot.comm = test_ranks_.init()[0];
  }

  TestRanks& test_ranks_;
  const int rank_;
  std::mt19937 shared_;  // draws that both ranks share
  std::mt19937 own_;
  std::array<Slot, 2> slots_;
  int depth_ = 0;
};

TEST_CASE("random mixtures of all requests over two communicators do what a reference says",
          "[req:5.2]") {
  const std::uint64_t seed = test_seed();
  check_all_ok(run_ranks(LaunchMode::threads, 2, [seed](TestRanks& test_ranks) {
    MixedRank rank(test_ranks, seed);
    for (int group = 0; group < repeats(60); ++group) rank.run_group();
    rank.end();
  }));
}

}  // namespace
}  // namespace oriel::test

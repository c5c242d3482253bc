// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "oriel/device/group.hpp"
#include "oriel/device/world_barrier.hpp"

#include "api/api_ranks.hpp"
#include "support/process_state.hpp"

/// Ranks on several nodes that reach each other's windows through queues (3.15).
namespace oriel::test {

/// Number of ranks on each node, in rank order.
struct Nodes {
  std::vector<int> sizes;
  int ranks() const {
    int all = 0;
    for (const int size : sizes) all += size;
    return all;
  }
  int node_of(int rank) const {
    int node = 0;
    for (int end = sizes[0]; rank >= end; end += sizes[static_cast<std::size_t>(node)]) ++node;
    return node;
  }
  std::string text() const {
    std::string made;
    for (const int size : sizes) made += (made.empty() ? "" : "+") + std::to_string(size);
    return made;
  }
};

/// Returns the setting that names a rank's node.
inline Variables on_node(const Nodes& nodes, int rank) {
  return {{"ORIEL_HOSTID", "node" + std::to_string(nodes.node_of(rank))}};
}

/// Runs ranks on these nodes, with `settings` for all ranks.
inline void run_on_nodes(const Nodes& nodes, const Variables& settings, const Body& body) {
  INFO(nodes.text());
  check_all_ok(run_ranks(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    const Environment common(settings), node(on_node(nodes, test_ranks.first()));
    body(test_ranks);
  }));
}

inline constexpr device::Thread kThread;

inline void require(device::WorldOutcome outcome, const std::string& what) {
  test::require(outcome == device::WorldOutcome::done, what + ": " + device::to_string(outcome));
}
inline void require_outcome(device::WorldOutcome outcome, device::WorldOutcome expected,
                            const std::string& what) {
  test::require(outcome == expected, what + ": " + device::to_string(outcome));
}

/// A rank with one window of `bytes` bytes and a device communicator.
struct Rank {
  explicit Rank(TestRanks& test_ranks, std::size_t bytes, const DeviceCommOptions& options)
      : comm(join(test_ranks)),
        memory(must(comm.allocate(bytes))),
        window(must(comm.register_window(memory))),
        kernels(must(comm.device_comm(options))) {}
  Rank(Communicator of, oriel::Buffer bytes, Window its_window, DeviceComm for_kernels)
      : comm(std::move(of)),
        memory(std::move(bytes)),
        window(std::move(its_window)),
        kernels(std::move(for_kernels)) {}
  const device::CommView& view() const { return kernels.view(); }
  std::uint8_t* at(std::size_t offset) const {
    return static_cast<std::uint8_t*>(memory.data()) + offset;
  }
  void sync(const std::string& what) const {
    device::WorldBarrier<device::Thread> barrier({}, view(), 0);
    require(barrier.sync(), what);
  }

  Communicator comm;
  oriel::Buffer memory;
  Window window;
  DeviceComm kernels;
};

inline constexpr DeviceCommOptions kWorld{
    .barrier_slots = 4, .world = true, .signals = 16, .counters = 2};

/// Checks 3.6 with two ranks: after an abort, posts are refused and reach no peer. With `at_once`,
/// the first post is refused, as on CPUs. Otherwise posts are accepted until the NIC has written
/// the queue's words.
inline void post_after_abort(TestRanks& test_ranks, bool at_once) {
  using namespace std::chrono_literals;
  const device::Thread self;
  Rank rank(test_ranks, 4096, kWorld);
  const auto window = rank.window.view();
  rank.sync("the first barrier");
  test_ranks.barrier();  // no rank is still in the first barrier
  if (test_ranks.first() == 0) {
    *rank.at(8) = 77;
    rank.comm.abort();
    const auto post = [&] {
      return device::world_put(self, rank.view(), 1, window, 0, window, 8, 1).outcome;
    };
    auto outcome = post();
    // 200 posts, far fewer than the queue has room for.
    for (int i = 0; i < 200 && !at_once && outcome == device::WorldOutcome::done; ++i) {
      std::this_thread::sleep_for(10ms);
      outcome = post();
    }
    require_outcome(outcome, device::WorldOutcome::aborted, "a put after the abort");
    require_outcome(device::world_signal(self, rank.view(), 1, 0).outcome,
                    device::WorldOutcome::aborted, "a signal after the abort");
    std::this_thread::sleep_for(20ms);  // time in which the NIC's thread could send it
  }
  test_ranks.barrier();
  test::require(*rank.at(0) == 0 && device::read_signal(rank.view(), 0) == 0, "nothing has come");
  test_ranks.barrier();
}

inline std::uint8_t pattern(int rank, std::uint64_t salt, std::size_t at) {
  std::uint64_t mixed = (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u + salt * 977;
  mixed = (mixed + at) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::uint8_t>(mixed >> 56);
}

/// Bytes of one rank's part of a window.
inline constexpr std::size_t kPart = 160'000;

/// Random puts and gets of one rank with all peers, and a record of the expected results.
class Traffic {
 public:
  Traffic(TestRanks& test_ranks, std::uint64_t seed)
      : test_ranks_(test_ranks),
        me_(test_ranks.first()),
        parts_(static_cast<std::size_t>(test_ranks.size())),
        // Layout: a part written by each peer, a part that peers read, a source of puts, and a
        // target of gets.
        readable_(parts_ * kPart),
        source_(readable_ + kPart),
        sink_(source_ + kPart),
        rank_(test_ranks, sink_ + kPart, kWorld),
        view_(rank_.window.view()),
        random_(seed + static_cast<std::uint64_t>(me_) * 7919),
        sent_(parts_, std::vector<std::uint8_t>(kPart, 0)),
        signalled_(parts_, 0) {}

  Rank& rank() { return rank_; }

  void run(int steps) {
    for (std::size_t i = 0; i < kPart; ++i) *rank_.at(readable_ + i) = pattern(me_, 1, i);
    order_before_nics();
    rank_.sync("the first barrier");
    for (int step = 0; step < steps; ++step) {
      const auto peer = static_cast<int>(random_() % parts_);
      const std::size_t bytes = random_() % (random_() % 8 == 0 ? kPart : 5000);
      const std::size_t far = random_() % (kPart - bytes), near = random_() % (kPart - bytes);
      if (random_() % 3 == 0) {
        get(peer, far, near, bytes);
      } else {
        put(peer, far, near, bytes, static_cast<std::uint64_t>(step) + 2);
      }
    }
    rank_.sync("the barrier behind all puts");
    check_what_arrived();
  }

 private:
  /// Reads a byte of each peer, which orders all earlier stores of this rank before what its NIC's
  /// thread does next. For the thread sanitizer: the barrier may order them through memory of other
  /// processes only, which it cannot see.
  void order_before_nics() {
    for (std::size_t peer = 0; peer < parts_; ++peer) {
      const auto posted = device::world_get(kThread, rank_.view(), static_cast<int>(peer), view_,
                                            static_cast<std::size_t>(me_) * kPart, view_, sink_, 1);
      require(device::world_wait(kThread, rank_.view(), posted), "a byte of each peer");
    }
  }
  void get(int peer, std::size_t far, std::size_t near, std::size_t bytes) {
    const auto posted = device::world_get(kThread, rank_.view(), peer, view_, readable_ + far,
                                          view_, sink_ + near, bytes);
    require(device::world_wait(kThread, rank_.view(), posted), "a get");
    for (std::size_t i = 0; i < bytes; ++i) {
      test::require(*rank_.at(sink_ + near + i) == pattern(peer, 1, far + i), "what was read");
    }
  }
  void put(int peer, std::size_t far, std::size_t near, std::size_t bytes, std::uint64_t salt) {
    auto& sent = sent_[static_cast<std::size_t>(peer)];
    for (std::size_t i = 0; i < bytes; ++i) {
      *rank_.at(source_ + near + i) = sent[far + i] = pattern(me_, salt, i);
    }
    const auto posted = device::world_put_signal(
        device::Thread(), rank_.view(), peer, view_, static_cast<std::size_t>(me_) * kPart + far,
        view_, source_ + near, bytes, static_cast<std::uint32_t>(me_), 1);
    ++signalled_[static_cast<std::size_t>(peer)];
    require(device::world_count(device::Thread(), rank_.view(), 1, posted), "counting");
    // The next step overwrites the source.
    require(device::wait_counter(device::Thread(), rank_.view(), 1), "a put");
  }
  void check_what_arrived() {
    const auto own = static_cast<std::size_t>(me_);
    for (std::size_t peer = 0; peer < parts_; ++peer) {
      const auto posted = device::world_get(device::Thread(), rank_.view(), static_cast<int>(peer),
                                            view_, own * kPart, view_, sink_, kPart);
      require(device::world_wait(device::Thread(), rank_.view(), posted), "the last get");
      test::require(std::equal(sent_[peer].begin(), sent_[peer].end(), rank_.at(sink_)),
                    "what is at the peer, byte by byte");
      test_ranks_.word(own * parts_ + peer) = signalled_[peer];
    }
    test_ranks_.barrier();
    for (std::size_t peer = 0; peer < parts_; ++peer) {
      test::require(device::read_signal(rank_.view(), static_cast<std::uint32_t>(peer)) ==
                        test_ranks_.word(peer * parts_ + own),
                    "how often a peer has signalled");
    }
    test_ranks_.barrier();
  }

  TestRanks& test_ranks_;
  const int me_;
  const std::size_t parts_, readable_, source_, sink_;
  Rank rank_;
  const device::WindowView view_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::uint8_t>> sent_;  // bytes put by this rank, by peer
  std::vector<std::uint64_t> signalled_;
};

/// Waits for the monitor to set the asynchronous error that explains why a wait ended.
inline std::optional<Error> error_of(const Communicator& comm) {
  static_cast<void>(eventually([&] { return comm.async_error().has_value(); }));
  return comm.async_error();
}

/// Waits until the communicator has an error whose origin is `culprit`.
inline Error require_named(const Communicator& comm, int culprit) {
  const auto error = error_of(comm);
  test::require(error && error->origin_rank() == culprit, error ? error->to_string() : "no error");
  return *error;
}
/// Waits for an error of a rank that died or fell silent. The code must be `remote`, not the
/// timeout of a rank that waited for it.
inline void require_silent(const Communicator& comm, int culprit) {
  const Error error = require_named(comm, culprit);
  test::require(error.code() == ErrorCode::remote, error.to_string());
}

/// Repeats all-reduces until one fails. Calls `done` after each success.
inline void reduce_until_it_fails(Communicator& comm, std::size_t count,
                                  const std::function<void()>& done = {}) {
  std::vector<float> values(count, 1);
  while (comm.all_reduce({.input = values.data(), .output = values.data(), .count = values.size()})
             .ok()) {
    std::fill(values.begin(), values.end(), 1.0F);
    if (done) done();
  }
}

}  // namespace oriel::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "nccl.h"

#include "support/process_state.hpp"
#include "support/ranks.hpp"

/// Counts of what a process holds before and after the calls of a test, and shortcuts for such
/// calls.
namespace oriel::test {

using namespace std::chrono_literals;

struct Held {
  std::size_t fds;
  std::size_t mappings;
  std::size_t threads;
  bool operator==(const Held&) const = default;
};

inline Held held() {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer keeps a thread of its own once a process has started its first thread.
  static std::once_flag once;
  std::call_once(once, [] { std::thread([] {}).join(); });
#endif
  // Locks, because listing a directory opens a descriptor, which another thread would count.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return {count_fds(), count_mappings(), count_threads()};
}

inline std::string text_of(const Held& held) {
  return fmt::format("{} fds, {} mappings, {} threads", held.fds, held.mappings, held.threads);
}

/// Longest wait for resources that are released in the background. Only a failing test waits so
/// long.
inline constexpr auto kSettlingTime = 20s;

/// Returns held() once it is stable. Descriptors left by init and joined threads disappear a little
/// later. The rendezvous thread counts as done when it has ended; everything else when the counts
/// stayed equal for 20 polls. A count taken too early is too high, and would hide a leak.
inline Held settled() {
  static_cast<void>(eventually([] { return !has_thread("oriel-root"); }, kSettlingTime));
  Held before = held();
  for (int same = 0; same < 20;) {
    std::this_thread::sleep_for(10ms);
    const Held now = held();
    same = now == before ? same + 1 : 0;
    before = now;
  }
  return before;
}

/// Compares counts. Fewer are no leak, because leftovers of init may have been released since.
inline bool within(const Held& now, const Held& most) {
  return now.fds <= most.fds && now.mappings <= most.mappings && now.threads <= most.threads;
}

/// Waits until the process holds no more than `expected`.
inline void require_held(const Held& expected, const std::string& when) {
  Held now{};
  const bool settles = eventually([&] { return within(now = held(), expected); }, kSettlingTime);
  require(settles, fmt::format("{}: {} instead of {}", when, text_of(now), text_of(expected)));
}

inline ncclComm_t init_alone() {
  ncclComm_t comm = nullptr;
  require(ncclCommInitRank(&comm, 1, new_id(), 0), "ncclCommInitRank");
  return comm;
}

/// Waits while a non-blocking communicator is in progress, and returns its state.
inline ncclResult_t settled_state(ncclComm_t comm) {
  static_cast<void>(eventually([&] { return state_of(comm) != ncclInProgress; }));
  return state_of(comm);
}

inline ncclResult_t sum(float* data, std::size_t count, ncclComm_t comm) {
  return ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, nullptr);
}

/// Sums 1, 2 and so on over the communicators of this thread, in one group.
inline void require_sum(std::span<const ncclComm_t> comms) {
  std::vector<float> data(comms.size());
  std::iota(data.begin(), data.end(), 1.0f);
  const float expected = std::accumulate(data.begin(), data.end(), 0.0f);
  require(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t i = 0; i < comms.size(); ++i) require(sum(&data[i], 1, comms[i]), "note");
  require(ncclGroupEnd(), "ncclGroupEnd");
  for (const float value : data) require(value == expected, "the sum");
}

inline void destroy(std::span<const ncclComm_t> comms) {
  for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Runs `body` in a child process, so that nothing else changes what the process holds.
inline void run_alone(const std::function<void()>& body) {
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks&) { body(); }));
}

}  // namespace oriel::test

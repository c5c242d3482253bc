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

/// What a process holds before and after the calls of a test, and short ways into them.
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
  // It keeps a thread of its own from the first one that is started in a process on.
  static std::once_flag once;
  std::call_once(once, [] { std::thread([] {}).join(); });
#endif
  // One thread at a time: to list a directory is to have it open.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return {count_fds(), count_mappings(), count_threads()};
}

inline std::string text_of(const Held& held) {
  return fmt::format("{} fds, {} mappings, {} threads", held.fds, held.mappings, held.threads);
}

/// How long to wait for what ends by itself. Only a test that fails waits so long.
inline constexpr auto kSettlingTime = 20s;

/// What init leaves to be closed behind the last rank goes a little later, as do threads that were
/// joined. The thread that serves rendezvous says when it has closed what it had; for the rest,
/// what is held has been taken once it has stayed the same for a while. What is counted too high
/// here would hide a leak, what is counted too low cannot be.
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

/// Less is no leak: what init leaves may have gone since.
inline bool within(const Held& now, const Held& most) {
  return now.fds <= most.fds && now.mappings <= most.mappings && now.threads <= most.threads;
}

/// Waits until no more is held than was.
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

/// What the state of a non-blocking communicator is once it is no longer in progress.
inline ncclResult_t settled_state(ncclComm_t comm) {
  static_cast<void>(eventually([&] { return state_of(comm) != ncclInProgress; }));
  return state_of(comm);
}

inline ncclResult_t sum(float* data, std::size_t count, ncclComm_t comm) {
  return ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, nullptr);
}

/// In one group sums 1, 2 and so on over the communicators of this thread.
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

/// In a child process, so that nothing else changes what the process holds.
inline void run_alone(const std::function<void()>& body) {
  check_all_ok(play(Cast::processes, 1, [&](Players&) { body(); }));
}

}  // namespace oriel::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <vector>

#include "base/deadline.hpp"
#include "base/task.hpp"
#include "boot/link/liveness.hpp"
#include "boot/link/transport.hpp"

namespace oriel::boot {

/// A time that only the simulation moves.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance_to(TimePoint when) { now_ = std::max(now_, when); }

 private:
  TimePoint now_{};
};

/// How long a message takes: a fixed latency and up to `jitter` more, drawn for
/// each message. Messages of a pair keep their order.
struct SimModel {
  Duration latency = std::chrono::microseconds(10);
  Duration jitter{};
  Duration deadline = std::chrono::seconds(30);
};

/// `size` ranks in one thread over a modelled network. They run the same Group and Liveness code as
/// real ranks do; news of deaths travels along the same link graph. A rank can be made to die or to
/// stop at any step; what would be a hang in reality shows here as an empty queue of events, and
/// the clock then jumps to the deadline.
class SimNetwork {
 public:
  SimNetwork(int size, SimModel model, std::uint64_t seed);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  Transport& transport(int rank);
  const VirtualClock& clock() const { return clock_; }

  /// The rank never returns from its `step`-th send or receive (from 0). Its neighbours see it die.
  void kill_at(int rank, int step);
  /// The same, but nobody is told, as with a stopped process.
  void stop_at(int rank, int step);
  bool reached_fault(int rank) const;

  int messages_sent(int rank) const;
  /// Of all ranks, so far: messages and notices.
  std::uint64_t frames_sent() const { return next_order_; }
  /// More frames than this are counted and lost, so that a flood ends.
  static constexpr std::uint64_t kFramesMost = 1'000'000;

  /// Runs one task per rank until every rank that has no fault is done; nothing for those that
  /// did not return.
  template <typename T>
  std::vector<std::optional<T>> run(std::vector<Task<T>> tasks) {
    for (auto& task : tasks) task.start();
    while (deliver_next()) {
    }
    std::vector<std::optional<T>> results;
    results.reserve(tasks.size());
    for (auto& task : tasks) {
      results.push_back(task.done() ? std::optional<T>(task.take()) : std::nullopt);
    }
    return results;
  }

 private:
  class Rank;
  struct Event {
    TimePoint when;
    std::uint64_t order;
    int to;
    int from;
    Bytes frame;
    bool operator>(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };

  bool deliver_next();
  void post(int from, int to, Bytes frame);
  void post_end_of_file(int dead);

  SimModel model_;
  VirtualClock clock_;
  TimePoint deadline_;
  std::mt19937_64 random_;
  std::uint64_t next_order_ = 0;
  std::map<std::pair<int, int>, TimePoint> last_delivery_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace oriel::boot

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

/// A clock that only the simulation advances.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance_to(TimePoint when) { now_ = std::max(now_, when); }

 private:
  TimePoint now_{};
};

/// Delay of a message: a fixed latency plus up to `jitter`, drawn for each message. Messages of a
/// pair keep their order.
struct SimModel {
  Duration latency = std::chrono::microseconds(10);
  Duration jitter{};
  Duration deadline = std::chrono::seconds(30);
};

/// Simulates `size` ranks in one thread over a modelled network. They run the Group and Liveness
/// code of real ranks, and failure notices use the real link graph. A rank can die or stop at any
/// step. A hang shows as an empty event queue; the clock then jumps to the deadline.
class SimNetwork {
 public:
  SimNetwork(int size, SimModel model, std::uint64_t seed);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  Transport& transport(int rank);
  const VirtualClock& clock() const { return clock_; }

  /// Makes the rank die in its `step`-th send or receive (from 0). Its neighbours detect the death.
  void kill_at(int rank, int step);
  /// Makes the rank stop at that step without a notice to anyone, like a stopped process.
  void stop_at(int rank, int step);
  bool reached_fault(int rank) const;

  int messages_sent(int rank) const;
  /// Counts the messages, notices and ends of streams of all ranks so far.
  std::uint64_t frames_sent() const { return next_order_; }
  /// Frames beyond this number are counted and dropped, so that a flood ends.
  static constexpr std::uint64_t kFramesMost = 1'000'000;

  /// Runs one task per rank until every rank without a fault is done. Returns no value for tasks
  /// that did not return.
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

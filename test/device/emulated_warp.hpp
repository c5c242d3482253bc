// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"

/// Warp whose lanes are CPU threads, for code that takes Lanes.
namespace oriel::test {

/// Emulates the collective operations among the lanes of a GPU's warp. On a GPU, the hardware
/// chooses which of the calling lanes converge. Here all lanes converge except those that have left
/// or poll (EmulatedLaneMemory). Half of the time the lanes are split at random into two groups.
class EmulatedWarp {
 public:
  static constexpr std::uint32_t kLanes = 32;

  explicit EmulatedWarp(std::uint64_t seed) : random_(seed) {}
  EmulatedWarp(const EmulatedWarp&) = delete;
  EmulatedWarp& operator=(const EmulatedWarp&) = delete;

  /// Calls `body` with each lane's number on a thread each. Returns when all have returned.
  void run(const std::function<void(std::uint32_t lane)>& body) {
    inside_ = ~std::uint32_t{0};
    std::vector<std::jthread> threads;
    threads.reserve(kLanes);
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      threads.emplace_back([this, lane, &body] {
        warp_ = this;
        lane_ = lane;
        body(lane);
        leave();
      });
    }
  }

  static EmulatedWarp& current() { return *warp_; }
  static std::uint32_t lane() { return lane_; }

  std::uint32_t together(std::uint64_t key) {
    std::unique_lock lock(mutex_);
    keys_[lane_] = key;
    polling_ &= ~(1u << lane_);
    polls_ = false;
    const std::uint64_t round = round_;
    waiting_ |= 1u << lane_;
    close_if_all_wait();
    changed_.wait(lock, [&] { return round_ != round; });
    return matched_[lane_];
  }

  /// Marks the lane as waiting for another lane's action, so that together() does not wait for it.
  void poll() {
    if (polls_) return;
    polls_ = true;
    const std::lock_guard lock(mutex_);
    polling_ |= 1u << lane_;
    close_if_all_wait();
  }

  std::uint64_t broadcast_among(std::uint32_t lanes, std::uint64_t value) {
    std::unique_lock lock(mutex_);
    // Meetings at the same time have disjoint lanes, and so different first lanes.
    Meeting& meeting = meetings_[static_cast<std::size_t>(std::countr_zero(lanes))];
    if (static_cast<std::uint32_t>(std::countr_zero(lanes)) == lane_) meeting.value = value;
    meeting.arrived |= 1u << lane_;
    const std::uint64_t round = meeting.round;
    if (meeting.arrived == lanes) {
      meeting.arrived = 0;
      ++meeting.round;
      // Stores the value for each lane: the next meeting may be over before the last lane wakes.
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1u) != 0) received_[lane] = meeting.value;
      }
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return meeting.round != round; });
    return received_[lane_];
  }

 private:
  struct Meeting {
    std::uint32_t arrived = 0;
    std::uint64_t round = 0;
    std::uint64_t value = 0;
  };

  void leave() {
    const std::lock_guard lock(mutex_);
    inside_ &= ~(1u << lane_);
    polling_ &= ~(1u << lane_);
    close_if_all_wait();
  }

  void close_if_all_wait() {
    if ((waiting_ | polling_) != inside_ || waiting_ == 0) return;
    const bool split = random_() % 2 == 0;
    const std::uint32_t half = split ? static_cast<std::uint32_t>(random_()) : 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      matched_[lane] = 0;
      for (std::uint32_t other = 0; other < kLanes; ++other) {
        const bool both = (waiting_ >> other & 1u) != 0 && keys_[other] == keys_[lane] &&
                          (half >> other & 1u) == (half >> lane & 1u);
        if (both) matched_[lane] |= 1u << other;
      }
    }
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
  }

  static inline thread_local EmulatedWarp* warp_ = nullptr;
  static inline thread_local std::uint32_t lane_ = 0;
  static inline thread_local bool polls_ = false;  // this lane's bit of polling_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::uint32_t inside_ = 0, waiting_ = 0, polling_ = 0;
  std::uint64_t round_ = 0;
  std::array<std::uint64_t, kLanes> keys_{}, received_{};
  std::array<std::uint32_t, kLanes> matched_{};
  std::array<Meeting, kLanes> meetings_{};
};

/// Memory policy of code that lanes of an EmulatedWarp run.
struct EmulatedLaneMemory : device::Memory {
  static void relax() {
    EmulatedWarp::current().poll();
    // Polling lanes would take the processors from the lanes that they wait for.
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
};

/// Lanes of an EmulatedWarp.
struct EmulatedLanes : device::Lanes {
  static std::uint32_t lane() { return EmulatedWarp::lane(); }
  static std::uint32_t most() { return EmulatedWarp::kLanes; }
  static std::uint32_t together(std::uint64_t key) { return EmulatedWarp::current().together(key); }
  static std::uint32_t before(std::uint32_t lanes) {
    return static_cast<std::uint32_t>(std::popcount(lanes & ((1u << lane()) - 1)));
  }
  static std::uint32_t count(std::uint32_t lanes) {
    return static_cast<std::uint32_t>(std::popcount(lanes));
  }
  static void sync_among(std::uint32_t lanes) { static_cast<void>(broadcast_among(lanes, 0)); }
  static std::uint64_t broadcast_among(std::uint32_t lanes, std::uint64_t value) {
    return EmulatedWarp::current().broadcast_among(lanes, value);
  }
};

}  // namespace oriel::test

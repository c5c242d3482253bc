// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "net/copy/copy_stream.hpp"

namespace oriel::net::test {

/// Stream whose steps run in order, some time after they were queued. Steps run when the test runs
/// them, and one now and then when signalled() is polled. So a caller that waits for all steps
/// comes to an end. A step reads its bytes when it runs. Deterministic for a seed: depends on no
/// thread and no clock.
class LateStream final : public CopyStream {
 public:
  LateStream(std::uint32_t slots, std::size_t slot_bytes, std::uint64_t seed)
      : memory_(slots * slot_bytes), random_(seed) {
    slots_ = memory_.data();
    slot_bytes_ = slot_bytes;
  }
  /// Runs up to `most` steps.
  void run(std::size_t most) const {
    for (; most > 0 && !steps_.empty(); --most) {
      steps_.front()();
      steps_.pop_front();
    }
  }
  /// Runs a random number of steps, as one turn of the stream.
  void run_some() {
    if (is_still) polls_ = 0;
    run(is_still ? 0 : random_() % 12);
  }
  bool is_still = false;  ///< runs steps only for a caller that keeps polling signalled()
  std::size_t left() const { return steps_.size(); }

  bool has_capacity() override { return steps_.size() < 64; }
  Status load(std::uint32_t number, const std::byte* from, std::size_t count) override {
    return add([to = slot(number), from, count] { std::memcpy(to, from, count); });
  }
  Status store(std::byte* to, std::uint32_t number, ByteView from) override {
    std::memcpy(slot(number), from.data(), from.size());
    return add([to, at = slot(number), count = from.size()] { std::memcpy(to, at, count); });
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t count) override {
    return add([to, from, count] { std::memmove(to, from, count); });
  }
  Status write(std::byte* to, std::uint64_t value, std::size_t bytes) override {
    return add([to, value, bytes] { std::memcpy(to, &value, bytes); });
  }
  Status signal(std::uint64_t count) override {
    return add([this, count] { signalled_ = count; });
  }
  std::uint64_t signalled() const override {
    if (++polls_ % (is_still ? kPollsWhileStill : kPollsPerStep) == 0) run(1);
    return signalled_;
  }
  Status poll() override { return {}; }
  bool settle() noexcept override {
    if (!is_still) run(steps_.size());
    return steps_.empty();
  }

 private:
  static constexpr std::uint64_t kPollsPerStep = 64;
  static constexpr std::uint64_t kPollsWhileStill = 2048;  // polls per turn: only of a waiter
  Status add(std::function<void()> step) {
    steps_.push_back(std::move(step));
    return {};
  }

  std::vector<std::byte> memory_;
  mutable std::deque<std::function<void()>> steps_;
  mutable std::uint64_t polls_ = 0;
  mutable std::uint64_t signalled_ = 0;
  std::mt19937_64 random_;
};

}  // namespace oriel::net::test

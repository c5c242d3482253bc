// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

/// Body for CPU and GPU threads: data with immediates, from one rank to another that waits for the
/// immediates (B4).
namespace oriel::net::test {

namespace dq = device::queue;

/// One end of the transfer. Rounds use `slots` places of `bytes` bytes in turn, from the beginning
/// of both regions on. There are at least twice as many slots as receives.
struct ImmediatesPath {
  dq::QueueView queue;
  dq::ReceiveView receives;
  dq::Region local;
  dq::Region remote;
  std::uint32_t bytes = 1024;  ///< bytes of a round: a multiple of 8
  std::uint32_t slots = 8;
  device::WaitControl control;
};

template <class Group, class M = device::Memory>
class ImmediatesBody {
 public:
  explicit ORIEL_DEVICE_FN ImmediatesBody(const ImmediatesPath& path) : path_(path) {}

  /// Fills this round's place and puts it with an immediate.
  ORIEL_DEVICE_FN dq::QueueOutcome send(std::uint32_t round) {
    auto outcome = dq::QueueOutcome::done;
    if (round % path_.slots == 0) {  // reuses a place only once its put is complete
      if (group_.rank() == 0) outcome = dq::wait_all<M>(path_.queue, path_.control);
      group_.sync();
      outcome =
          static_cast<dq::QueueOutcome>(group_.broadcast(static_cast<std::uint64_t>(outcome)));
      if (outcome != dq::QueueOutcome::done) return outcome;
    }
    const std::uint64_t at = place(round);
    auto* const words = reinterpret_cast<std::uint64_t*>(path_.local.address + at);
    for (std::uint32_t i = group_.rank(); i < path_.bytes / 8; i += group_.size()) {
      words[i] = word_of(round, i);
    }
    group_.sync();
    return dq::put_immediate<Group, M>(group_, path_.queue,
                                       {path_.local, at, path_.remote, at, path_.bytes},
                                       immediate_of(round), path_.control)
        .outcome;
  }

  /// Waits for the round's immediate, checks every word, and posts a new receive.
  ORIEL_DEVICE_FN dq::QueueOutcome receive(std::uint32_t round) {
    dq::ReceivedImmediate got;
    const auto outcome =
        dq::wait_immediate<Group, M>(group_, path_.queue, path_.receives, got, path_.control);
    if (outcome != dq::QueueOutcome::done) return outcome;
    bool good = got.value == immediate_of(round) && got.bytes == path_.bytes;
    const auto* const words =
        reinterpret_cast<const std::uint64_t*>(path_.local.address + place(round));
    for (std::uint32_t i = group_.rank(); i < path_.bytes / 8; i += group_.size()) {
      const auto word = M::template load<device::Order::relaxed, device::Scope::system>(&words[i]);
      good = good && word == word_of(round, i);
    }
    const bool wrong = group_.any(!good);
    if (wrong) ++wrong_;
    if (group_.rank() == 0 && !dq::post_receives<M>(path_.receives, 1)) ++wrong_;
    return outcome;
  }

  /// Returns the number of wrong rounds; valid in thread 0.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t wrong() const { return wrong_; }

 private:
  static ORIEL_DEVICE_FN std::uint32_t immediate_of(std::uint32_t round) {
    return round ^ 0xa5000000u;
  }
  static ORIEL_DEVICE_FN std::uint64_t word_of(std::uint32_t round, std::uint32_t word) {
    return std::uint64_t{round} << 32 | word;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t place(std::uint32_t round) const {
    return std::uint64_t{round % path_.slots} * path_.bytes;
  }

  const ImmediatesPath& path_;
  Group group_;
  std::uint32_t wrong_ = 0;
};

}  // namespace oriel::net::test

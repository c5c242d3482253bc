// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>

#include "base/deadline.hpp"
#include "net/copy/data_mover.hpp"

namespace oriel::net {

/// One NIC's share of a mover that several NICs of a rank have in common, so that what they know of
/// a word's value, the order in which they move and the tickets are common as well: what one of
/// them has begun comes before what another begins later, also where that goes on with its queues.
///
/// Waits are for what went through this share alone, so that a NIC with no work of its own is not
/// kept awake by the others, nor waits for them.
/// Thread safety: as DataMover, but other shares of the mover may be used meanwhile.
class MoverShare final : public DataMover {
 public:
  /// Both outlive the share and the parts that it gives out. All who use the mover hold the mutex.
  /// `drain_most`: for how long drain() waits.
  MoverShare(DataMover& mover, std::mutex& mutex, Duration drain_most = kDrainMost)
      : mover_(mover), mutex_(mutex), drain_most_(drain_most) {}
  MoverShare(const MoverShare&) = delete;
  MoverShare& operator=(const MoverShare&) = delete;

  StagedPart load(const std::byte* from, std::size_t count) override;
  bool keep(StagedPart& part) override;
  std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) override;
  bool copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) override;
  bool step_atomic(AtomicMove& move, std::byte* at) override;
  bool is_done(MoveTicket ticket) override;
  bool flush() override;
  /// The others have the mover meanwhile.
  Status drain() override;
  void forget(const std::byte* at, std::size_t count) override;
  bool has_failed() const override;
  bool settle() noexcept override;

 private:
  void give_back(StagedPart& part) noexcept override;
  void note(MoveTicket ticket);
  bool is_moving();

  DataMover& mover_;
  std::mutex& mutex_;
  const Duration drain_most_;
  MoveTicket last_ = 0;    // of what began here
  bool is_stuck_ = false;  // it has been waited for once
};

}  // namespace oriel::net

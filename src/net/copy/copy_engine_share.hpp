// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>

#include "base/deadline.hpp"
#include "net/copy/copy_engine.hpp"

namespace oriel::net {

/// One NIC's share of an engine that several NICs of a rank use. The NICs thus share the known
/// values of words, the order of moves and the tickets. A move of one NIC takes effect before a
/// later move of another, even if the other has taken over its queues.
///
/// flush() and drain() consider only moves that went through this share. So a NIC without work is
/// not kept awake by the others and does not wait for them. Thread safety: as for CopyEngine, but
/// other shares of the engine may be used meanwhile.
class CopyEngineShare final : public CopyEngine {
 public:
  /// Both references outlive the share and its parts. All users of the engine hold the mutex.
  /// `drain_most` is the timeout of drain().
  CopyEngineShare(CopyEngine& engine, std::mutex& mutex, Duration drain_most = kDrainMost)
      : engine_(engine), mutex_(mutex), drain_most_(drain_most) {}
  CopyEngineShare(const CopyEngineShare&) = delete;
  CopyEngineShare& operator=(const CopyEngineShare&) = delete;

  StagedPart load(const std::byte* from, std::size_t count) override;
  bool keep(StagedPart& part) override;
  std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) override;
  bool copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) override;
  bool step_atomic(AtomicMove& move, std::byte* at) override;
  bool is_done(MoveTicket ticket) override;
  bool flush() override;
  /// Holds the mutex only for each check, so that other shares can use the engine meanwhile.
  Status drain() override;
  void forget(const std::byte* at, std::size_t count) override;
  bool has_failed() const override;
  bool settle() noexcept override;

 private:
  void release(StagedPart& part) noexcept override;
  void note(MoveTicket ticket);
  bool is_moving();

  CopyEngine& engine_;
  std::mutex& mutex_;
  const Duration drain_most_;
  MoveTicket last_ = 0;    // latest ticket of this share
  bool is_stuck_ = false;  // an earlier drain() timed out
};

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "net/mlx5/mlx5_device.hpp"
#include "net/mlx5/mlx5_memory.hpp"

namespace oriel::net {

/// Rings doorbells for queues whose users cannot. The users store the doorbell value in a word of
/// host memory (a slot). A thread that calls progress() moves the value to the register.
///
/// Reading a slot empties it, so that a ring with the same value counts as a new one. If there are
/// several rings between two polls, only the last is passed on; it covers all before it. Thread
/// safety: any thread may call anything.
class Mlx5Ringer {
 public:
  Mlx5Ringer() = default;
  Mlx5Ringer(const Mlx5Ringer&) = delete;
  Mlx5Ringer& operator=(const Mlx5Ringer&) = delete;

  /// Service of one slot. After its destruction neither slot nor register is touched. Move-only.
  class RungDoorbell {
   public:
    RungDoorbell() = default;
    RungDoorbell(RungDoorbell&& other) noexcept;
    RungDoorbell& operator=(RungDoorbell&& other) noexcept;
    ~RungDoorbell() { reset(); }
    void reset();

   private:
    friend class Mlx5Ringer;
    RungDoorbell(std::shared_ptr<Mlx5Ringer> ringer, std::uint64_t* slot);
    std::shared_ptr<Mlx5Ringer> ringer_;
    std::uint64_t* slot_ = nullptr;
  };
  /// Starts the service of a slot. Fails on CPUs for which the order of stores to a register is
  /// unknown to Oriel.
  static Result<RungDoorbell> serve(const std::shared_ptr<Mlx5Ringer>& ringer, std::uint64_t* slot,
                                    void* doorbell);

  /// Passes on all rings. Returns whether there were any.
  bool progress();
  /// Returns whether there is a slot to poll.
  bool is_needed() const { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  struct Pair {
    std::uint64_t* slot;
    std::uint64_t* doorbell;
  };
  void remove(const std::uint64_t* slot);

  std::mutex mutex_;
  std::vector<Pair> pairs_;
  std::atomic<std::size_t> count_{0};
  std::atomic<unsigned> drained_{0};
};

/// Doorbell register, and the mapping by which a queue's users reach it.
struct Mlx5Register {
  std::shared_ptr<const Mlx5Device> device;  // stays open as long as the register
  Mlx5UarOwner uar;
  bool is_write_combining = false;
  std::unique_ptr<Mlx5Mapping> mapping;  // null until users ask for it
};

/// Doorbell of one queue: a register that its users reach, or a slot whose content a CPU thread
/// passes on. Move-only. The memory's source outlives it.
class Mlx5Doorbell {
 public:
  /// Returns the word that the queue's users ring.
  std::uint64_t* user() const;
  /// Returns the register's UAR page, as commands name it.
  std::uint32_t page_number() const { return register_->uar->page_number; }
  bool is_rung_by_processor() const { return slot_ != nullptr; }

 private:
  friend class Mlx5Doorbells;
  // Destroyed in reverse order.
  std::shared_ptr<Mlx5Register> register_;
  std::unique_ptr<QueuePages> slot_;
  Mlx5Ringer::RungDoorbell rung_doorbell_;
};

/// Doorbells of one open adapter.
///
/// All queues whose memory comes from one source share the uncached register and its mapping.
/// rdma-core has one such register for each context, and CUDA maps a page only once. A
/// write-combining register belongs to one queue: the CPU may combine the rings of two.
///
/// Thread safety: any thread may call anything.
class Mlx5Doorbells {
 public:
  explicit Mlx5Doorbells(std::shared_ptr<const Mlx5Device> device);

  /// Makes a doorbell. Fails if the choice is `gpu` and the users cannot reach the register.
  Result<Mlx5Doorbell> make(Mlx5Memory& memory, DoorbellChoice choice);
  /// Rings the doorbells that a CPU has to ring. Returns whether there were any.
  bool progress() { return ringer_->progress(); }
  /// Returns whether a CPU has to ring for any queue.
  bool need_processor() const { return ringer_->is_needed(); }

 private:
  Result<std::shared_ptr<Mlx5Register>> register_for(const Mlx5Memory& memory);

  std::shared_ptr<const Mlx5Device> device_;
  std::shared_ptr<Mlx5Ringer> ringer_;
  std::mutex mutex_;
  std::map<const Mlx5Memory*, std::weak_ptr<Mlx5Register>> shared_;
  bool has_warned_ = false;  // warned that a CPU rings the doorbells
};

}  // namespace oriel::net

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

/// Rings doorbells for queues whose users cannot: these store what they would store to the register
/// in a word of the host's memory (a slot), and somebody calls progress(), which takes it from
/// there to the register.
///
/// A slot is emptied as it is read, so that a ring that looks like the last one is one more. Of
/// several between two looks only the last is passed on, which is enough: each tells of all before.
/// Thread safety: any thread may call anything.
class Mlx5Ringer {
 public:
  Mlx5Ringer() = default;
  Mlx5Ringer(const Mlx5Ringer&) = delete;
  Mlx5Ringer& operator=(const Mlx5Ringer&) = delete;

  /// One slot's service; once it is destroyed neither slot nor register are touched. Move-only.
  class Bell {
   public:
    Bell() = default;
    Bell(Bell&& other) noexcept;
    Bell& operator=(Bell&& other) noexcept;
    ~Bell() { reset(); }
    void reset();

   private:
    friend class Mlx5Ringer;
    Bell(std::shared_ptr<Mlx5Ringer> ringer, std::uint64_t* slot);
    std::shared_ptr<Mlx5Ringer> ringer_;
    std::uint64_t* slot_ = nullptr;
  };
  /// Refused on processors for which we do not know how to order stores to a register.
  static Result<Bell> serve(const std::shared_ptr<Mlx5Ringer>& ringer, std::uint64_t* slot,
                            void* doorbell);

  /// Passes on what has come. Whether there was anything.
  bool progress();
  /// Returns whether there is any slot to poll.
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

/// A doorbell register, and the mapping through which a queue's users reach it.
struct Mlx5Register {
  std::shared_ptr<const Mlx5Device> device;  // stays open as long
  Mlx5UarOwner uar;
  bool is_write_combining = false;
  std::unique_ptr<Mlx5Mapping> mapping;  // null until users ask for it
};

/// The doorbell of one queue: a register that its users reach, or a slot whose content a processor
/// passes on. Move-only. The memory's source outlives it.
class Mlx5Doorbell {
 public:
  /// Returns the word that the queue's users ring.
  std::uint64_t* user() const;
  /// The register's page, as commands name it.
  std::uint32_t page_number() const { return register_->uar->page_number; }
  bool is_rung_by_processor() const { return slot_ != nullptr; }

 private:
  friend class Mlx5Doorbells;
  // Destroyed from the last to the first.
  std::shared_ptr<Mlx5Register> register_;
  std::unique_ptr<QueuePages> slot_;
  Mlx5Ringer::Bell bell_;
};

/// The doorbells of one open adapter.
///
/// All queues whose memory comes from one source share the uncached register and its mapping:
/// rdma-core has one such register for each context, and CUDA maps a page once only. A
/// write-combining register belongs to one queue: the processor may combine the rings of two.
///
/// Thread safety: any thread may call anything.
class Mlx5Doorbells {
 public:
  explicit Mlx5Doorbells(std::shared_ptr<const Mlx5Device> device);

  /// Fails where the choice is `gpu` and the users cannot reach the register.
  Result<Mlx5Doorbell> make(Mlx5Memory& memory, DoorbellChoice choice);
  /// Rings what a processor has to ring. Returns whether there was anything.
  bool progress() { return ringer_->progress(); }
  /// Returns whether a processor has to ring for any queue.
  bool need_processor() const { return ringer_->is_needed(); }

 private:
  Result<std::shared_ptr<Mlx5Register>> register_for(const Mlx5Memory& memory);

  std::shared_ptr<const Mlx5Device> device_;
  std::shared_ptr<Mlx5Ringer> ringer_;
  std::mutex mutex_;
  std::map<const Mlx5Memory*, std::weak_ptr<Mlx5Register>> shared_;
  bool has_warned_ = false;  // that a processor rings
};

}  // namespace oriel::net

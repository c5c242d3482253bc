// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"

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
  /// Whether there is any slot to look at.
  bool is_needed() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// True for the first caller only, who says in the log that the processor rings.
  bool is_first() { return !said_.exchange(true); }

 private:
  struct Pair {
    std::uint64_t* slot;
    std::uint64_t* doorbell;
  };
  void remove(const std::uint64_t* slot);

  std::mutex mutex_;
  std::vector<Pair> pairs_;
  std::atomic<std::size_t> count_{0};
  std::atomic<bool> said_{false};
  std::atomic<unsigned> drained_{0};
};

/// A thread that calls progress() until destroyed. Spins while there is something to do, and naps
/// between looks when there has been nothing for a while. Move-only.
class Mlx5RingerThread {
 public:
  /// `begin`, if there is one, is called once in the thread: it puts it beside the adapter, and may
  /// fail.
  static Result<Mlx5RingerThread> start(std::shared_ptr<Mlx5Ringer> ringer,
                                        std::function<void()> begin = {});
  Mlx5RingerThread(Mlx5RingerThread&&) noexcept;
  Mlx5RingerThread& operator=(Mlx5RingerThread&&) noexcept;
  ~Mlx5RingerThread();

 private:
  struct State;
  explicit Mlx5RingerThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net

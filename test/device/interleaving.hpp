// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ucontext.h>

#include "oriel/device/memory.hpp"

/// Runs a few threads of a lock-free algorithm as fibers of one thread, in orders that the test
/// chooses. At each memory access another fiber may continue. Explores the behaviours of a
/// sequentially consistent machine, not the additional ones of weaker memory models.
namespace oriel::test {

/// One run of the fibers. At every access, Choose decides to continue with the same fiber or to
/// preempt it in favour of another.
class Interleaving {
 public:
  /// Called at each access while several fibers run. Returns how many live fibers ahead the next
  /// one is; 0 continues with this one.
  using Choose = std::function<std::size_t(std::size_t runnable)>;

  /// Runs all bodies to their ends. Returns false if they took more accesses than `most`; the
  /// bodies are then abandoned where they are.
  bool run(const std::vector<std::function<void()>>& bodies, const Choose& choose,
           std::uint64_t most) {
    fibers_.clear();
    for (const auto& body : bodies) {
      fibers_.push_back(std::make_unique<Fiber>());
      Fiber& fiber = *fibers_.back();
      fiber.body = &body;
      fiber.stack.resize(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Interleaving::enter, 0);
    }
    choose_ = &choose;
    most_ = most;
    accesses_ = 0;
    at_ = 0;
    active_ = this;
    swapcontext(&home_, &fibers_[0]->context);
    active_ = nullptr;
    return alive() == 0;
  }
  std::uint64_t accesses() const { return accesses_; }

  /// Marks a memory access of the running fiber. Does nothing outside a run.
  static void access() {
    if (active_ != nullptr) active_->step(false);
  }
  /// Passes control to the next fiber, because the running one cannot proceed alone.
  static void pause() {
    if (active_ != nullptr) active_->step(true);
  }
  /// Returns the index of the running body.
  static std::size_t fiber() { return active_->at_; }

 private:
  static constexpr std::size_t kStackBytes = 64 << 10;
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    const std::function<void()>* body = nullptr;
    bool ended = false;
  };

  static void enter() {
    Interleaving& self = *active_;
    Fiber& fiber = *self.fibers_[self.at_];
    (*fiber.body)();
    fiber.ended = true;
    self.go_to_next(1);
  }

  std::size_t alive() const {
    std::size_t count = 0;
    for (const auto& fiber : fibers_) count += fiber->ended ? 0 : 1;
    return count;
  }

  void step(bool must_leave) {
    if (++accesses_ > most_) {
      Fiber& fiber = *fibers_[at_];
      swapcontext(&fiber.context, &home_);  // never comes back
    }
    const std::size_t others = alive() - 1;
    if (others == 0) return;
    const std::size_t ahead = must_leave ? 1 : (*choose_)(others + 1);
    if (ahead != 0) go_to_next(ahead);
  }

  void go_to_next(std::size_t ahead) {
    const std::size_t from = at_;
    while (ahead > 0 && alive() > 0) {
      at_ = (at_ + 1) % fibers_.size();
      if (!fibers_[at_]->ended) --ahead;
    }
    ucontext_t& to = alive() == 0 ? home_ : fibers_[at_]->context;
    if (from != at_ || alive() == 0) swapcontext(&fibers_[from]->context, &to);
  }

  inline static Interleaving* active_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  const Choose* choose_ = nullptr;
  ucontext_t home_{};
  std::size_t at_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t accesses_ = 0;
};

/// Memory policy of code that runs in an Interleaving.
struct InterleavedMemory : device::Memory {
  template <device::Order kOrder, device::Scope kScope = device::Scope::system, class T>
  static T load(const T* address) {
    Interleaving::access();
    return device::Memory::load<kOrder, kScope>(address);
  }
  template <device::Order kOrder, device::Scope kScope = device::Scope::system, class T>
  static void store(T* address, T value) {
    Interleaving::access();
    device::Memory::store<kOrder, kScope>(address, value);
  }
  template <device::Order kOrder, device::Scope kScope = device::Scope::system, class T>
  static T fetch_add(T* address, T value) {
    Interleaving::access();
    return device::Memory::fetch_add<kOrder, kScope>(address, value);
  }
  template <device::Order kOrder, device::Scope kScope = device::Scope::system>
  static std::uint64_t fetch_max(std::uint64_t* address, std::uint64_t value) {
    Interleaving::access();
    return device::Memory::fetch_max<kOrder, kScope>(address, value);
  }
  template <device::Scope kScope = device::Scope::system>
  static std::uint64_t fetch_or(std::uint64_t* address, std::uint64_t bits) {
    Interleaving::access();
    return device::Memory::fetch_or<kScope>(address, bits);
  }
  template <device::Scope kScope = device::Scope::system>
  static std::uint64_t exchange(std::uint64_t* address, std::uint64_t value) {
    Interleaving::access();
    return device::Memory::exchange<kScope>(address, value);
  }
  template <device::Order kOrder, device::Scope kScope = device::Scope::system, class T>
  static T compare_swap(T* address, T expected, T value) {
    Interleaving::access();
    return device::Memory::compare_swap<kOrder, kScope>(address, expected, value);
  }
  static void relax() { Interleaving::pause(); }
  /// Returns a constant, so that no wait times out or sleeps.
  static std::uint64_t clock_ns() { return 8; }
};

/// Calls `run_once` with every way of preempting at most `preemptions` times. `run_once` runs its
/// fibers with the Choose that it is given, and returns false to end the search. A preemption goes
/// to any other fiber. Returns the number of orders tried.
inline std::uint64_t explore(int preemptions,
                             const std::function<bool(const Interleaving::Choose&)>& run_once) {
  // Preempts after `at` choices from the start, by `ahead` live fibers.
  struct Preemption {
    std::uint64_t at;
    std::size_t ahead;
  };
  std::uint64_t tried = 0;
  std::function<bool(std::vector<Preemption>)> search = [&](std::vector<Preemption> prefix) {
    std::uint64_t choices = 0;
    std::size_t widest = 0;
    std::size_t next = 0;
    const Interleaving::Choose choose = [&](std::size_t runnable) -> std::size_t {
      const std::uint64_t now = choices++;
      widest = std::max(widest, runnable);
      if (next < prefix.size() && prefix[next].at == now) return prefix[next++].ahead % runnable;
      return 0;
    };
    ++tried;
    if (!run_once(choose)) return false;
    if (static_cast<int>(prefix.size()) == preemptions) return true;
    const std::uint64_t begin = prefix.empty() ? 0 : prefix.back().at + 1;
    for (std::uint64_t at = begin; at < choices; ++at) {
      for (std::size_t ahead = 1; ahead < widest; ++ahead) {
        auto longer = prefix;
        longer.push_back({at, ahead});
        if (!search(std::move(longer))) return false;
      }
    }
    return true;
  };
  search({});
  return tried;
}

}  // namespace oriel::test

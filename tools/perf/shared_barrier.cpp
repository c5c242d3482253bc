// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/shared_barrier.hpp"

#include <new>
#include <utility>

#include <sched.h>
#include <sys/mman.h>

#include "base/system_table.hpp"

namespace oriel::perf {
namespace {

// Polls before yielding: after these, the others are late or there are fewer cores than ranks.
constexpr int kSpins = 2000;

}  // namespace

Result<SharedBarrier> SharedBarrier::create(int ranks) {
  void* memory =
      ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("mapping the ranks' barrier");
  SharedBarrier barrier;
  barrier.words_ = new (memory) Words{0, 0, static_cast<std::uint32_t>(ranks)};
  return barrier;
}

SharedBarrier::SharedBarrier(SharedBarrier&& other) noexcept
    : words_(std::exchange(other.words_, nullptr)) {}

SharedBarrier& SharedBarrier::operator=(SharedBarrier&& other) noexcept {
  std::swap(words_, other.words_);
  return *this;
}

SharedBarrier::~SharedBarrier() {
  if (words_ != nullptr) ::munmap(words_, sizeof(Words));
}

Status SharedBarrier::wait(Deadline deadline) const {
  if (words_ == nullptr) return {};
  // Loads the generation before arriving, because the last rank to arrive advances it at once.
  const std::uint32_t generation = words_->generation.load(std::memory_order_acquire);
  if (words_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == words_->ranks) {
    words_->arrived.store(0, std::memory_order_relaxed);
    words_->generation.store(generation + 1, std::memory_order_release);
    return {};
  }
  for (int spins = 0; words_->generation.load(std::memory_order_acquire) == generation; ++spins) {
    if (spins < kSpins) continue;
    ::sched_yield();
    if (deadline.expired(SteadyClock::instance().now()))
      return Error(ErrorCode::timeout, "another rank did not come to the start of the round");
  }
  return {};
}

}  // namespace oriel::perf

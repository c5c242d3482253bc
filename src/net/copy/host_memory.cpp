// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/host_memory.hpp"

#include <atomic>
#include <cstring>

#include "oriel/device/memory.hpp"

namespace oriel::net {
namespace {

bool is_word(const std::byte* at, std::size_t count) {
  return (count == 4 || count == 8) && reinterpret_cast<std::uintptr_t>(at) % count == 0;
}

template <class Word>
void store_word(std::byte* to, const std::byte* from) {
  Word value;
  std::memcpy(&value, from, sizeof value);
  device::arch::annotate_happens_before();  // readers may have mapped it elsewhere
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(value, std::memory_order_release);
}

template <class Word>
void load_word(const std::byte* from, std::byte* to) {
  auto* word = const_cast<Word*>(reinterpret_cast<const Word*>(from));
  const Word value = std::atomic_ref<Word>(*word).load(std::memory_order_acquire);
  std::memcpy(to, &value, sizeof value);
}

template <class Word>
std::uint64_t exchange_word(const AtomicWork& work, std::byte* at) {
  const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(at));
  Word old = word.load(std::memory_order_relaxed);
  device::arch::annotate_happens_before();
  while (!word.compare_exchange_weak(old, static_cast<Word>(apply_atomic(work, old)),
                                     std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
  device::arch::annotate_happens_before();  // the requester may act on the old value
  return old;
}

}  // namespace

void store_bytes(std::byte* to, ByteView from) {
  if (!is_word(to, from.size())) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  } else if (from.size() == 8) {
    store_word<std::uint64_t>(to, from.data());
  } else {
    store_word<std::uint32_t>(to, from.data());
  }
}

void load_bytes(const std::byte* from, std::byte* to, std::size_t count) {
  if (!is_word(from, count)) {
    if (count != 0) std::memcpy(to, from, count);
  } else if (count == 8) {
    load_word<std::uint64_t>(from, to);
  } else {
    load_word<std::uint32_t>(from, to);
  }
}

std::uint64_t apply_atomic(const AtomicWork& work, std::uint64_t old) {
  std::uint64_t value = old;
  if (work.form == AtomicWork::Form::add) {
    // Adds the top bit of each field without its carry; the lower bits cannot carry beyond it.
    const std::uint64_t tops = work.boundary;
    value = ((old & ~tops) + (work.operand & ~tops)) ^ ((old ^ work.operand) & tops);
  } else if (((old ^ work.compare) & work.compare_mask) == 0) {
    value = (old & ~work.swap_mask) | (work.operand & work.swap_mask);
  }
  return work.bytes == 4 ? value & 0xffffffffu : value;
}

std::uint64_t execute_atomic(const AtomicWork& work, std::byte* at) {
  return work.bytes == 4 ? exchange_word<std::uint32_t>(work, at)
                         : exchange_word<std::uint64_t>(work, at);
}

}  // namespace oriel::net

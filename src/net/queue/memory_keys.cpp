// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/memory_keys.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oriel::net {
namespace {

// An odd factor visits every value once in 2^32 steps. Neighbours in the sequence are far apart, so
// a key that is off by one is invalid.
constexpr std::uint32_t kFactor = 0x9e3779b1u;

// Returns the inverse modulo 2^32. Three bits are right at first, and each step doubles the number
// of right bits.
constexpr std::uint32_t inverse_of(std::uint32_t odd) {
  std::uint32_t inverse = odd;
  for (int step = 0; step < 4; ++step) inverse *= 2 - odd * inverse;
  return inverse;
}
static_assert(kFactor * inverse_of(kFactor) == 1);

}  // namespace

Result<std::uint32_t> MemoryKeys::add(const MemoryRange& range) {
  if (range.bytes == 0 || range.memory == nullptr || range.address + range.bytes < range.address) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {:#x} are no memory that could be registered",
                             range.bytes, range.address))
        .with_hint("pass 1 byte or more of mapped memory that ends inside the address space");
  }
  const bool changed_by_peers = (range.access & (kRemoteWrite | kRemoteAtomic)) != 0;
  if (range.access > 15) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("access rights {:#x} have unknown bits", range.access))
        .with_hint("set no bits above 0xf");
  }
  if (changed_by_peers && (range.access & kLocalWrite) == 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("access rights {:#x} let peers write what its owner may not",
                             range.access))
        .with_hint("add the right of local writes");
  }
  std::uint32_t key = 0;
  do {
    key = ++made_ * kFactor;
  } while (key == 0 || keys_.contains(key));
  keys_.emplace(key, range);
  return key;
}

Status MemoryKeys::remove(std::uint32_t key) {
  if (keys_.erase(key) != 0) return {};
  return Error(ErrorCode::invalid_argument, fmt::format("the NIC has no key {:#x}", key))
      .with_hint("pass a key that register_memory() has returned, and deregister it once");
}

bool MemoryKeys::is_deregistered(std::uint32_t key) const {
  if (key == 0 || keys_.contains(key)) return false;
  return key * inverse_of(kFactor) - start_ - 1 < made_ - start_;
}

const MemoryRange* MemoryKeys::range_of(std::uint32_t key) const {
  const auto it = keys_.find(key);
  return it == keys_.end() ? nullptr : &it->second;
}

MemoryKeys::Found MemoryKeys::find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                                   std::uint8_t rights, Syndrome otherwise) const {
  if (bytes == 0) return {};
  const Found none{nullptr, otherwise};
  const auto it = keys_.find(key);
  if (it == keys_.end()) return none;
  const MemoryRange& range = it->second;
  if ((range.access & rights) != rights || address < range.address) return none;
  const std::uint64_t offset = address - range.address;
  if (offset > range.bytes || bytes > range.bytes - offset) return none;
  return {range.memory + offset, Syndrome::none, range.place, range.own_words};
}

MemoryKeys::Found MemoryKeys::find_local(std::uint32_t key, std::uint64_t address,
                                         std::uint64_t bytes, bool write) const {
  return find(key, address, bytes, write ? kLocalWrite : 0, Syndrome::local_protection);
}

MemoryKeys::Found MemoryKeys::find_remote(std::uint32_t key, std::uint64_t address,
                                          std::uint64_t bytes, Access right) const {
  Found found = find(key, address, bytes, right, Syndrome::remote_access);
  if (found.syndrome != Syndrome::none && is_deregistered(key)) {
    found.syndrome = Syndrome::remote_gone;
  }
  return found;
}

}  // namespace oriel::net

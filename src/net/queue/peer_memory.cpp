// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/peer_memory.hpp"

#include <fmt/format.h>

namespace oriel::net {

Status PeerMemory::add(std::uint64_t peer, std::uint32_t key, const MemoryRange& range) {
  const bool sound = range.bytes != 0 && range.memory != nullptr &&
                     range.bytes <= ~std::uint64_t{0} - range.address;
  if (peer == 0 || key == 0 || !sound) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {:#x} of peer {} are no memory that could be mapped",
                             range.bytes, range.address, peer))
        .with_hint("pass a peer, its rkey and 1 byte or more that are mapped here");
  }
  ranges_.insert_or_assign({peer, key}, range);
  return {};
}

MemoryKeys::Found PeerMemory::find(std::uint64_t peer, std::uint32_t key, std::uint64_t address,
                                   std::uint64_t bytes) const {
  const MemoryKeys::Found none{nullptr, Syndrome::remote_access};
  if (peer == 0) return none;
  const auto it = ranges_.find({peer, key});
  if (it == ranges_.end() || address < it->second.address) return none;
  const std::uint64_t offset = address - it->second.address;
  if (offset > it->second.bytes || bytes > it->second.bytes - offset) return none;
  return {it->second.memory + offset, Syndrome::none, it->second.place};
}

void PeerMemory::set_reached(std::uint64_t peer, std::uint32_t key, bool reached) {
  if (reached && peer != 0) {
    reached_.emplace(peer, key);
  } else {
    reached_.erase({peer, key});
  }
}

void PeerMemory::forget(std::uint32_t key) {
  std::erase_if(reached_, [key](const Name& name) { return name.second == key; });
}

}  // namespace oriel::net

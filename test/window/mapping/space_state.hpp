// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "window/mapping/slot_space.hpp"

/// Queries the taken places and the mappings of a flat space, from the space and from the kernel.
namespace oriel::window {

/// Returns true if no agreement keeps or proposes a place of `slots`.
inline bool all_free(SlotSpace& slots) {
  constexpr SlotSpace::Token kLast{~std::uint64_t{0}, ~std::uint64_t{0}};
  const auto whole = slots.propose(kLast, slots.slot_bytes(), 0, SlotSpace::Pass::waiting);
  slots.drop(kLast);
  return whole.ok() && whole->kind == SlotSpace::Proposal::Kind::held;
}

/// A mapping of a memfd, identified by its inode.
struct MappedPart {
  std::size_t offset;
  std::size_t bytes;
  unsigned long inode;
};

/// Returns the mappings of memfds that begin in [base, base + bytes), by their offset.
inline std::vector<MappedPart> mapped_parts(const std::byte* base, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  const auto first = reinterpret_cast<std::size_t>(base);
  std::vector<MappedPart> parts;
  for (std::string line; std::getline(maps, line);) {
    std::size_t begin = 0;
    std::size_t end = 0;
    unsigned long inode = 0;
    const bool is_memfd =
        line.find("memfd:") != std::string::npos &&
        std::sscanf(line.c_str(), "%zx-%zx %*s %*s %*s %lu", &begin, &end, &inode) == 3;
    if (!is_memfd || begin < first || begin >= first + bytes) continue;
    parts.push_back({begin - first, end - begin, inode});
  }
  return parts;
}

}  // namespace oriel::window

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/team_mapping.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {
namespace {

std::size_t total_bytes(const MappingKey::Rank& rank) {
  std::size_t bytes = 0;
  for (const SegmentInfo& segment : rank.segments) bytes += segment.bytes;
  return bytes;
}

}  // namespace

std::size_t greatest_shift(const MappingKey& key) {
  std::size_t shift = 0;
  for (const auto& rank : key.ranks) shift = std::max<std::size_t>(shift, rank.shift);
  return shift;
}

std::size_t extent_bytes(const MappingKey& key) {
  // A rank's allocations begin (greatest shift - own shift) bytes into the place.
  const std::size_t behind = greatest_shift(key);
  std::size_t extent = 0;
  for (const auto& rank : key.ranks) {
    extent = std::max(extent, behind - rank.shift + total_bytes(rank));
  }
  return extent;
}

/// Holds weak references, so that a mapping lives only as long as its windows.
struct TeamMapping::Table {
  using Key = std::tuple<const FlatSpace*, int, MappingKey>;
  std::mutex mutex;
  std::map<Key, std::weak_ptr<TeamMapping>, std::less<>> entries;

  /// Finds an entry without copying the key; the caller holds the mutex.
  auto find(const FlatSpace* space, int index, const MappingKey& key) {
    return entries.find(std::tie(space, index, key));
  }
};

TeamMapping::Table& TeamMapping::table() {
  static Table* const table = new Table;
  return *table;
}

TeamMapping::TeamMapping(std::shared_ptr<FlatSpace> space, int index, MappingKey key,
                         SlotPlace place)
    : space_(std::move(space)),
      index_(index),
      key_(std::move(key)),
      place_(std::move(place)),
      anchor_(place_.offset() + greatest_shift(key_)) {
  const auto& own = key_.ranks[static_cast<std::size_t>(index_)].segments;
  occupied_.reserve(own.size());
  for (const SegmentInfo& segment : own) occupied_.emplace_back(segment.id);
}

TeamMapping::~TeamMapping() {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.find(space_.get(), index_, key_);
  // Another thread may have published the next mapping of this key already.
  if (found != all.entries.end() && found->second.expired()) all.entries.erase(found);
}

Status TeamMapping::map_all() {
  for (std::size_t slot = 0; slot < key_.ranks.size(); ++slot) {
    std::size_t offset = anchor_ - key_.ranks[slot].shift;
    for (const SegmentInfo& segment : key_.ranks[slot].segments) {
      AllocationRef allocation = AllocationTable::instance().find(segment.id);
      if (allocation == nullptr) {
        return Error(ErrorCode::internal, fmt::format("allocation {} of slot {} has not arrived",
                                                      segment.id.serial, slot));
      }
      auto mapping = space_->map(static_cast<int>(slot), offset, std::move(allocation));
      if (!mapping.ok()) return std::move(mapping).error();
      mappings_.push_back(std::move(mapping).value());
      offset += segment.bytes;
    }
  }
  return {};
}

std::shared_ptr<TeamMapping> TeamMapping::find(const FlatSpace& space, int index,
                                               const MappingKey& key) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.find(&space, index, key);
  return found == all.entries.end() ? nullptr : found->second.lock();
}

void TeamMapping::publish(const std::shared_ptr<TeamMapping>& mapping) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  all.entries[Table::Key(mapping->space_.get(), mapping->index_, mapping->key_)] = mapping;
}

}  // namespace oriel::window

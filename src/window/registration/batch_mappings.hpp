// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "window/mapping/team_mapping.hpp"
#include "window/registration/registration.hpp"

namespace oriel::window {

/// Holds the mappings that a batch needs on one rank: live ones, and new ones at a slot range that
/// the team agrees on. Call find() first. Repeat propose() and settle() until there is a place.
/// Then call keep(), or drop() to give up. Call map_new() before publish().
class BatchMappings {
 public:
  /// `index` is this rank's index in the team; `token` names the agreement.
  BatchMappings(Plan plan, int index, SlotSpace::Token token);
  /// Drops a proposal that has not been kept.
  ~BatchMappings();
  BatchMappings(const BatchMappings&) = delete;
  BatchMappings& operator=(const BatchMappings&) = delete;

  /// Acquires the flat space and finds the live mappings in it.
  Status find(Memory& memory, const std::vector<TeamMember>& members, std::size_t slot_bytes);

  std::size_t count() const { return mappings_.size(); }
  /// Returns the bytes that new mappings need, as far as this rank knows.
  std::size_t wanted_bytes() const { return search_.bytes; }
  /// Returns this rank's message for the next round, without its socket name.
  Result<PlaceMessage> propose();
  /// Evaluates the messages of a round, none of which reports a failure. Returns true once the
  /// ranks have a place or need none; the result is equal on all ranks.
  bool settle(std::span<const PlaceMessage> places);
  /// Drops the proposal. Call it only when no rank of this process proposes any more.
  void drop();
  /// Keeps the agreed place and divides it among the new mappings.
  Status keep();

  bool has_new() const;
  /// Returns the allocations of new mappings that the process with these slots must export.
  std::vector<SegmentInfo> wanted_of(std::span<const int> slots) const {
    return allocations_of(plan_, is_new_, slots);
  }
  Status map_new();
  /// Publishes the new mappings, so that later batches find them.
  void publish() const;

  const std::shared_ptr<FlatSpace>& space() const { return space_; }
  /// Returns the mapping that contains the batch's window `window`.
  const std::shared_ptr<TeamMapping>& mapping_of(std::size_t window) const {
    return mappings_[plan_.windows[window].mapping];
  }
  std::size_t offset_of(std::size_t window) const {
    return mapping_of(window)->anchor() + plan_.windows[window].behind_anchor;
  }

 private:
  Plan plan_;
  int index_;
  SlotSpace::Token token_;
  std::shared_ptr<FlatSpace> space_;                    // null until found
  std::vector<std::shared_ptr<TeamMapping>> mappings_;  // by the plan's mapping
  std::vector<bool> is_new_;                            // by the plan's mapping
  Layout layout_;                                       // layout of the new mappings
  PlaceSearch search_;
  std::size_t place_ = 0;  // slot offset of the layout
};

}  // namespace oriel::window

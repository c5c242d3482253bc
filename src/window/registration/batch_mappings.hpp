// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "window/mapping/team_mapping.hpp"
#include "window/registration/registration.hpp"

namespace oriel::window {

/// The mappings that a batch needs on one rank: those that are alive, and new ones in a place of
/// the slots that the ranks of the team agree on. Calls come in the order in which they stand here.
class BatchMappings {
 public:
  /// `index` is this rank's in the team; `token` names the agreement.
  BatchMappings(Plan plan, int index, SlotSpace::Token token);
  /// Takes back a proposal that has not been kept.
  ~BatchMappings();
  BatchMappings(const BatchMappings&) = delete;
  BatchMappings& operator=(const BatchMappings&) = delete;

  /// Finds the flat space and what is alive in it.
  Status find(Memory& memory, const std::vector<TeamMember>& members, std::size_t slot_bytes);

  std::size_t count() const { return mappings_.size(); }
  /// What new mappings take, as far as this rank knows.
  std::size_t wanted_bytes() const { return search_.bytes; }
  /// This rank's message of the next round, but for its socket.
  Result<PlaceMessage> propose();
  /// Takes in the messages of a round, none of which says that its rank has failed. The same on all
  /// ranks: true once they have a place, or need none.
  bool settle(std::span<const PlaceMessage> places);
  /// Takes back what has been proposed. No rank of this process proposes any more.
  void drop();
  /// Takes the place, and divides it among the new mappings.
  Status keep();

  bool has_new() const;
  /// The allocations of new mappings that the process of these slots has to offer.
  std::vector<SegmentInfo> wanted_of(std::span<const int> slots) const {
    return allocations_of(plan_, is_new_, slots);
  }
  Status map_new();
  /// Makes the new mappings known to later batches.
  void publish() const;

  const std::shared_ptr<FlatSpace>& space() const { return space_; }
  /// What the batch's window `window` lies in, and where it begins in the slots.
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
  Layout layout_;                                       // of the new ones
  PlaceSearch search_;
  std::size_t place_ = 0;  // where the layout begins in the slots
};

}  // namespace oriel::window

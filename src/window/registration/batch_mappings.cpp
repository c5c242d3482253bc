// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/batch_mappings.hpp"

#include <algorithm>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "window/memory/memory_block.hpp"

namespace oriel::window {

BatchMappings::BatchMappings(Plan plan, int index, SlotSpace::Token token)
    : plan_(std::move(plan)),
      index_(index),
      token_(token),
      mappings_(plan_.mappings.size()),
      is_new_(plan_.mappings.size()) {}

BatchMappings::~BatchMappings() {
  drop();
}

Status BatchMappings::find(Memory& memory, const std::vector<TeamMember>& members,
                           std::size_t slot_bytes) {
  ORIEL_TRY(space_, FlatSpace::acquire(memory, members, slot_bytes));
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    mappings_[i] = TeamMapping::find(*space_, index_, plan_.mappings[i]);
    // Assumes in the first proposal that the team's live mappings equal this rank's, which mostly
    // holds.
    is_new_[i] = mappings_[i] == nullptr;
  }
  search_.bytes = lay_out(plan_, is_new_).bytes;
  return {};
}

Result<PlaceMessage> BatchMappings::propose() {
  PlaceMessage message;
  message.bytes = search_.bytes;
  for (const auto& mapping : mappings_) {
    message.anchors.push_back(mapping ? mapping->anchor() : PlaceMessage::kNotAlive);
  }
  if (search_.bytes == 0) return message;
  SlotSpace& slots = space_->slots();
  ORIEL_TRY(message.proposal, slots.propose(token_, search_.bytes, search_.floor, search_.pass));
  if (message.proposal.kind == SlotSpace::Proposal::Kind::none &&
      search_.pass == SlotSpace::Pass::waiting) {
    return slots.out_of_space(search_.bytes);
  }
  return message;
}

bool BatchMappings::settle(std::span<const PlaceMessage> places) {
  is_new_ = mappings_to_make(places, mappings_.size());
  layout_ = lay_out(plan_, is_new_);
  search_.bytes = layout_.bytes;
  if (search_.bytes == 0) return true;
  const auto place = window::settle(search_, places);
  place_ = place.value_or(0);
  return place.has_value();
}

void BatchMappings::drop() {
  if (space_ != nullptr) space_->slots().drop(token_);
}

Status BatchMappings::keep() {
  if (layout_.bytes == 0) {
    drop();  // nothing was proposed: all mappings are alive on all ranks
    return {};
  }
  ORIEL_CHECK(space_->slots().keep(token_));
  SlotPlace rest(space_, place_, round_up(layout_.bytes, plan_.granularity));
  for (std::size_t i = mappings_.size(); i-- > 0;) {
    if (!is_new_[i]) continue;
    // Includes the gap behind each mapping, so that the whole place is released in the end.
    mappings_[i] = std::make_shared<TeamMapping>(space_, index_, plan_.mappings[i],
                                                 rest.split(place_ + layout_.offsets[i]));
  }
  return {};
}

bool BatchMappings::has_new() const {
  return std::find(is_new_.begin(), is_new_.end(), true) != is_new_.end();
}

Status BatchMappings::map_new() {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (is_new_[i]) ORIEL_CHECK(mappings_[i]->map_all());
  }
  return {};
}

void BatchMappings::publish() const {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (is_new_[i]) TeamMapping::publish(mappings_[i]);
  }
}

}  // namespace oriel::window

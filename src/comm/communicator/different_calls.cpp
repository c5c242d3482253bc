// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "comm/communicator/call_text.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "kernels/plan/call_record.hpp"

/// Names the calls of ranks that are not in the same one.
namespace oriel::comm {

kernels::CallRecord* Communicator::call_record(int index) const {
  if (!on_host() || control_.flat_base == nullptr) return nullptr;
  return reinterpret_cast<kernels::CallRecord*>(control_.flat_base +
                                                static_cast<std::size_t>(index) * slot_bytes_ +
                                                kernels::ScratchLayout::call_record);
}

std::optional<kernels::NumberedCall> Communicator::last_call(int index) const {
  const kernels::CallRecord* const record = call_record(index);
  return record != nullptr ? kernels::read_call(*record) : std::nullopt;
}

std::optional<Error> Communicator::different_calls() const {
  const auto own = last_call(team_facts_.index);
  if (!own) return std::nullopt;
  // Of the ranks that are as far as this one, the first that differs from the first of them: the
  // same two on all ranks, once all have come.
  std::optional<kernels::CollectiveCall> first;
  int first_rank = -1;
  for (std::size_t index = 0; index < team_facts_.members.size(); ++index) {
    const auto there = last_call(static_cast<int>(index));
    if (!there || there->number != own->number) continue;
    const int other = team_facts_.members[index];
    if (!first) {
      first = there->call;
      first_rank = other;
    } else if (!(there->call == *first)) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("ranks {} and {} are in different calls: rank {} in {}, rank {} "
                               "in {}",
                               first_rank, other, first_rank, text_of(*first), other,
                               text_of(there->call)))
          .with_origin(other)
          .with_hint("all ranks pass the same count, type, operation and root, in the same order");
    }
  }
  return std::nullopt;
}

std::optional<Error> Communicator::left_behind_by(int rank) const {
  // What comes over a network may be late. A peer of a send or receive may be in a later collective
  // that does not wait for this rank.
  if (live_network_ != nullptr || flight_->is_in_point_to_point()) return std::nullopt;
  const auto& members = team_facts_.members;
  const auto at = std::find(members.begin(), members.end(), rank);
  if (at == members.end()) return std::nullopt;
  const auto own = last_call(team_facts_.index);
  const auto there = last_call(static_cast<int>(at - members.begin()));
  if (!own || !there || there->number <= own->number) return std::nullopt;
  return Error(ErrorCode::invalid_usage,
               fmt::format("ranks {} and {} are in different calls: rank {} has begun {} and is in "
                           "{}, rank {} has begun {} and is in {}",
                           this->rank(), rank, this->rank(), own->number, text_of(own->call), rank,
                           there->number, text_of(there->call)))
      .with_origin(rank)
      .with_hint("one of them has left out a call, or made one too many");
}

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/last_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

#include "comm/request/call_text.hpp"

namespace oriel::comm {

namespace {

/// Returns the address at `offset` of a team member's scratch memory. Returns null for GPU ranks,
/// and before the scratch memory is registered.
template <class T>
T* in_scratch(const CommunicatorParts& parts, int index, std::uint64_t offset) {
  if (!on_host(parts) || parts.control.flat_base == nullptr) return nullptr;
  return reinterpret_cast<T*>(parts.control.flat_base +
                              static_cast<std::size_t>(index) * parts.slot_bytes + offset);
}

}  // namespace

kernels::CallRecord* call_record(const CommunicatorParts& parts, int index) {
  return in_scratch<kernels::CallRecord>(parts, index, kernels::ScratchLayout::call_record);
}

std::optional<CallActivity> activity_of(const CommunicatorParts& parts, int index) {
  const auto* const word =
      in_scratch<const std::uint64_t>(parts, index, kernels::ScratchLayout::activity);
  if (word == nullptr) return std::nullopt;
  return activity_of(device::Memory::load<device::Order::relaxed>(word));
}

std::optional<kernels::NumberedCall> last_call(const CommunicatorParts& parts, int index) {
  const kernels::CallRecord* const record = call_record(parts, index);
  return record != nullptr ? kernels::read_call(*record) : std::nullopt;
}

std::optional<Error> different_calls(const CommunicatorParts& parts) {
  const auto own = last_call(parts, parts.team_facts.index);
  if (!own) return std::nullopt;
  // Compares the ranks whose call has the same number as this rank's call. Names the first of them
  // and the first that differs from it: the same two on all ranks, once all have arrived.
  std::optional<kernels::CollectiveCall> first;
  int first_rank = -1;
  for (std::size_t index = 0; index < parts.team_facts.members.size(); ++index) {
    const auto there = last_call(parts, static_cast<int>(index));
    if (!there || there->number != own->number) continue;
    const int other = parts.team_facts.members[index];
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

std::optional<Error> left_behind_by(const CommunicatorParts& parts, int rank) {
  // Messages over a network may arrive late. The peer of a send or receive may be in a later
  // collective that does not wait for this rank.
  if (parts.live_network != nullptr || parts.flight->activity().is_transfer()) return std::nullopt;
  const auto& members = parts.team_facts.members;
  const auto at = std::find(members.begin(), members.end(), rank);
  if (at == members.end()) return std::nullopt;
  const int own_rank = parts.team_facts.world_rank;
  const auto own = last_call(parts, parts.team_facts.index);
  const auto there = last_call(parts, static_cast<int>(at - members.begin()));
  if (!own || !there || there->number <= own->number) return std::nullopt;
  return Error(ErrorCode::invalid_usage,
               fmt::format("ranks {} and {} are in different calls: rank {} has started {} and is "
                           "in {}, rank {} has started {} and is in {}",
                           own_rank, rank, own_rank, own->number, text_of(own->call), rank,
                           there->number, text_of(there->call)))
      .with_origin(rank)
      .with_hint("make the same calls in the same order on both ranks");
}

std::optional<Error> held_by_transfer_of(const CommunicatorParts& parts, int rank) {
  if (!parts.flight->activity().is_collective()) return std::nullopt;
  const auto& members = parts.team_facts.members;
  const auto at = std::find(members.begin(), members.end(), rank);
  if (at == members.end()) return std::nullopt;
  const int own_rank = parts.team_facts.world_rank;
  const auto own = last_call(parts, parts.team_facts.index);
  const auto there = activity_of(parts, static_cast<int>(at - members.begin()));
  if (!own || !there || !there->is_transfer() || there->peer != own_rank) return std::nullopt;
  return Error(ErrorCode::invalid_usage,
               fmt::format("ranks {} and {} are in different calls: rank {} in {}, rank {} in {}",
                           own_rank, rank, own_rank, text_of(own->call), rank, text_of(*there)))
      .with_origin(rank)
      .with_hint("make the same calls in the same order on both ranks");
}

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "comm/communicator.hpp"
#include "kernels/call_record.hpp"

/// Names the calls of ranks that are not in the same one.
namespace oriel::comm {
namespace {

std::string text_of(const kernels::CollectiveCall& call) {
  const std::string operation =
      kernels::reduces(call.collective) ? fmt::format(" ({})", name_of(call.op)) : "";
  const std::string_view name = name_of(call.collective);
  return fmt::format("{} {}{} of {} x {}", name.front() == 'a' ? "an" : "a", name, operation,
                     call.count, name_of(call.type));
}

}  // namespace

std::optional<Error> Communicator::different_calls() const {
  if (!on_host() || control_.flat_base == nullptr) return std::nullopt;
  const auto call_of = [&](std::size_t index) {
    return kernels::read_call(*reinterpret_cast<const kernels::CallRecord*>(
        control_.flat_base + index * slot_bytes_ + kernels::ScratchLayout::call_record));
  };
  const auto own = call_of(static_cast<std::size_t>(team_facts_.index));
  if (!own) return std::nullopt;
  // Of the ranks that are as far as this one, the first that differs from the first of them: the
  // same two on all ranks, once all have come.
  std::optional<kernels::CollectiveCall> first;
  int first_rank = -1;
  for (std::size_t index = 0; index < team_facts_.members.size(); ++index) {
    const auto there = call_of(index);
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
          .with_hint("all ranks pass the same count, type and operation, in the same order");
    }
  }
  return std::nullopt;
}

}  // namespace oriel::comm

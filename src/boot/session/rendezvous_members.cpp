// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/rendezvous_members.hpp"

namespace oriel::boot {

void RendezvousMembers::add(int rank, const Member& member) {
  members_.emplace(rank, member);
  timeout_.emplace(member.timeout.when(), rank);
  rank_of_.emplace(member.connection, rank);
}

const RendezvousMembers::Member* RendezvousMembers::find(int rank) const {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

std::optional<int> RendezvousMembers::rank_of(Connection connection) const {
  const auto found = rank_of_.find(connection);
  if (found == rank_of_.end()) return std::nullopt;
  return found->second;
}

void RendezvousMembers::finish(int rank) {
  Member& member = members_.at(rank);
  member.done = true;
  timeout_.erase({member.timeout.when(), rank});
  ++done_;
}

void RendezvousMembers::extend(Duration grace) {
  timeout_.clear();
  for (auto& [rank, member] : members_) {
    member.timeout = Deadline::at(member.timeout.when() + grace);
    timeout_.emplace(member.timeout.when(), rank);
  }
}

Deadline RendezvousMembers::next_deadline() const {
  return timeout_.empty() ? Deadline::never() : Deadline::at(timeout_.begin()->first);
}

}  // namespace oriel::boot

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "comm/communicator/call_text.hpp"
#include "comm/communicator/rank_communicator.hpp"

/// Handles waits that last: ends those that cannot end well, and reports the others to the user.
namespace oriel::comm {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const std::size_t shown = std::min(ranks.size(), kMost);
  std::string text = "ranks";
  for (std::size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}{}", i == 0 ? " " : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > shown) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

bool others_wait(const boot::Peers& peers) {
  const auto lock = peers.lock();
  return peers.links() != nullptr && peers.links()->liveness().others_wait();
}

}  // namespace

std::string Communicator::stalled_call() const {
  if (!on_host()) {
    const std::string last = flight_->enqueued_text();
    return last.empty() ? "a kernel of the user's"
                        : fmt::format("a kernel (the last call enqueued, {})", last);
  }
  std::string point_to_point = flight_->point_to_point_text();
  if (!point_to_point.empty()) return point_to_point;
  const auto own = last_call(team_facts_.index);
  if (!flight_->is_in_collective() || !own) return "a wait of the user's own";
  return fmt::format("{} (call {} of the communicator)", text_of(own->call), own->number);
}

std::vector<int> Communicator::awaited_ranks(int culprit) const {
  std::vector<int> awaited;
  const auto own = last_call(team_facts_.index);
  // A rank that has a root waits for the root or for one message after the other.
  const bool in_collective =
      flight_->is_in_collective() && own && !kernels::has_root(own->call.collective);
  for (std::size_t index = 0; own && in_collective && index < team_facts_.members.size(); ++index) {
    const auto there = last_call(static_cast<int>(index));
    if (!there || there->number < own->number) awaited.push_back(team_facts_.members[index]);
  }
  if (std::find(awaited.begin(), awaited.end(), culprit) == awaited.end()) {
    awaited.push_back(culprit);
  }
  std::sort(awaited.begin(), awaited.end());
  return awaited;
}

void Communicator::tell_of_stall(std::chrono::seconds lasted, int culprit) const {
  const std::string whom =
      culprit >= 0 ? list_of(awaited_ranks(culprit)) : std::string("another rank");
  const std::string name = options_.name.empty() ? "" : fmt::format(" of \"{}\"", options_.name);
  std::string text =
      fmt::format("stalled: rank {}{} has waited for {} s in {} for {} (late, stopped or gone)",
                  rank(), name, lasted.count(), stalled_call(), whom);
  const auto& members = team_facts_.members;
  const auto place = std::find(members.begin(), members.end(), culprit) - members.begin();
  const auto theirs =
      place < std::ssize(members) ? last_call(static_cast<int>(place)) : std::nullopt;
  if (theirs) {
    text += fmt::format("; the last collective of rank {} is call {}, {}", culprit, theirs->number,
                        text_of(theirs->call));
  }
  Log(rank()).alert("{}; ORIEL_COLLECTIVE_TIMEOUT would end such a wait", text);
  if (!stall_.watch.is_first() || !flight_->is_wanted()) return;
  session_->peers().tell_waiting(culprit);  // so that they write their files too
  flight_->write(text, false);
}

void Communicator::watch_stall(TimePoint now) {
  const auto& record = notices_->host().stall;
  const std::uint64_t waiting = __atomic_load_n(&record.waiting, __ATOMIC_ACQUIRE);
  // For those who would give up on this rank while it waits itself.
  if (settings_->collective_timeout || (waiting == 0 && flight_->is_wanted())) {
    session_->peers().tell_waiting(waiting == 0 ? -1 : device::stalled_rank(waiting));
  }
  if (waiting == 0) {
    // The rank that others wait for waits for nobody, and its file is the one that explains.
    const bool elsewhere = flight_->is_wanted() && others_wait(session_->peers());
    if (elsewhere && !stall_.elsewhere) flight_->write("another rank has waited for long", false);
    stall_.elsewhere = elsewhere;
    return;
  }
  if (const auto error = different_calls()) return give_up(*error);
  if (Network* const network = live_network_) network->probe(now, &notices_->host().abort);
  const std::uint64_t since = __atomic_load_n(&record.since_ns, __ATOMIC_RELAXED);
  if (!stall_.watch.goes_on(since, now, std::chrono::nanoseconds(device::kStallReportNs))) {
    stall_.ticks_since_left = 0;
    stall_.ticks_behind = 0;
    return;
  }
  // Messages that a rank sent before it went on or left arrive long before three more ticks.
  constexpr int kTicksToArrive = 3;
  const int culprit = device::stalled_rank(waiting);
  const auto behind = left_behind_by(culprit);
  if (behind && ++stall_.ticks_behind >= kTicksToArrive) return give_up(*behind);
  if (session_->has_left(culprit) && ++stall_.ticks_since_left >= kTicksToArrive) {
    return give_up(
        Error(ErrorCode::remote,
              fmt::format("rank {} has finalized or destroyed its communicator, while rank {} "
                          "waits for it in a collective, a send or a receive",
                          culprit, rank()))
            .with_origin(culprit)
            .with_hint("all ranks make the same calls, and both ends those that match, before they "
                       "destroy"));
  }
  if (const auto lasted = stall_.watch.due(now)) tell_of_stall(*lasted, culprit);
}

}  // namespace oriel::comm

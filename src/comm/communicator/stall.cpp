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
#include "comm/communicator/failure_watch.hpp"
#include "comm/communicator/last_calls.hpp"
#include "comm/request/call_text.hpp"

/// Handles long waits: ends those that cannot succeed, and reports the others to the user.
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

/// Returns the call that this rank waits in, as the log names it.
std::string stalled_call(const CommunicatorParts& parts) {
  if (!on_host(parts)) {
    const std::string last = parts.flight->enqueued_text();
    return last.empty() ? "a kernel of the user's"
                        : fmt::format("a kernel (the last call enqueued, {})", last);
  }
  const CallActivity activity = parts.flight->activity();
  if (activity.is_transfer()) return text_of(activity);
  const auto own = last_call(parts, parts.team_facts.index);
  if (!activity.is_collective() || !own) return "a wait of the user's own";
  return fmt::format("{} (call {} of the communicator)", text_of(own->call), own->number);
}

/// Returns the ranks that are known not to have reached this rank's call, and `awaited_rank`.
std::vector<int> awaited_ranks(const CommunicatorParts& parts, int awaited_rank) {
  std::vector<int> awaited;
  const auto own = last_call(parts, parts.team_facts.index);
  // In a collective with a root, a rank waits for the root or for one message after the other.
  const bool in_collective =
      parts.flight->activity().is_collective() && own && !kernels::has_root(own->call.collective);
  for (std::size_t index = 0; own && in_collective && index < parts.team_facts.members.size();
       ++index) {
    const auto there = last_call(parts, static_cast<int>(index));
    if (!there || there->number < own->number) awaited.push_back(parts.team_facts.members[index]);
  }
  if (std::find(awaited.begin(), awaited.end(), awaited_rank) == awaited.end()) {
    awaited.push_back(awaited_rank);
  }
  std::sort(awaited.begin(), awaited.end());
  return awaited;
}

/// Returns whether this rank need not ask `rank` for its calls: it can read them from memory, or
/// `rank` is unknown or this rank.
bool sees_calls_of(const CommunicatorParts& parts, int rank) {
  const auto& members = parts.team_facts.members;
  return rank < 0 || rank == parts.session->rank() ||
         (on_host(parts) && std::find(members.begin(), members.end(), rank) != members.end());
}

/// Returns whether this rank and the team's rank `index` are both in one collective.
bool is_in_own_call(const CommunicatorParts& parts, int index) {
  const auto there = activity_of(parts, index);
  if (!there || !there->is_collective() || !parts.flight->activity().is_collective()) return false;
  const auto own = last_call(parts, parts.team_facts.index);
  const auto last = last_call(parts, index);
  return own && last && own->number == last->number && text_of(own->call) == text_of(last->call);
}

/// Returns a text on the calls of a rank that others wait for. Each part begins with a semicolon;
/// empty if nothing is known.
std::string what_it_does(const CommunicatorParts& parts, int awaited_rank) {
  const auto& members = parts.team_facts.members;
  const auto place = std::find(members.begin(), members.end(), awaited_rank);
  if (place == members.end()) return {};
  const auto index = static_cast<int>(place - members.begin());
  // A rank that waits in the call too prints a line of its own, which names the next rank.
  if (is_in_own_call(parts, index)) {
    return fmt::format("; rank {} is in this call too (stopped, slow, or waits for another rank)",
                       awaited_rank);
  }
  std::string text;
  if (const auto activity = activity_of(parts, index)) {
    text += fmt::format("; rank {} is in {}", awaited_rank, text_of(*activity));
  }
  if (const auto last = last_call(parts, index)) {
    text += fmt::format("; the last collective of rank {} is call {}, {}", awaited_rank,
                        last->number, text_of(last->call));
  }
  return text;
}

}  // namespace

void FailureWatch::log_stall(std::chrono::seconds lasted, int awaited_rank) const {
  const std::string name =
      parts_.options.name.empty() ? "" : fmt::format(" of \"{}\"", parts_.options.name);
  if (is_own_grid(awaited_rank)) {
    const std::string own_text = fmt::format(
        "stalled: rank {}{} has waited for {} s in {} for its own CTAs (not started, or late)",
        rank(), name, lasted.count(), stalled_call(parts_));
    Log(rank()).alert(
        "{}; hint: end other kernels that fill the GPU; ORIEL_COLLECTIVE_TIMEOUT ends such waits",
        own_text);
    return write_calls(own_text, awaited_rank);
  }
  const std::string whom = awaited_rank >= 0 ? list_of(awaited_ranks(parts_, awaited_rank))
                                             : std::string("another rank");
  std::string text =
      fmt::format("stalled: rank {}{} has waited for {} s in {} for {} (late, stopped or gone)",
                  rank(), name, lasted.count(), stalled_call(parts_), whom);
  text += what_it_does(parts_, awaited_rank) + inquiry_.text_about(awaited_rank);
  Log(rank()).alert(
      "{}; hint: examine the rank that is waited for; ORIEL_COLLECTIVE_TIMEOUT ends such waits",
      text);
  write_calls(text, awaited_rank);
}

void FailureWatch::write_calls(const std::string& stall, int awaited_rank) const {
  if (!stall_.watch.is_first() || !parts_.flight->is_wanted()) return;
  // Makes the other ranks write their files too.
  parts_.session->peers().send_waiting(awaited_rank);
  parts_.flight->write(stall, false);
}

void FailureWatch::watch_others() {
  // A rank at the end of a chain of waits waits for nobody itself. Its file explains the stall.
  const bool elsewhere = parts_.flight->is_wanted() && others_wait(parts_.session->peers());
  if (elsewhere && !stall_.elsewhere) {
    parts_.flight->write("another rank has waited for long", false);
  }
  stall_.elsewhere = elsewhere;
}

std::optional<Error> FailureWatch::hopeless_wait(int awaited_rank) {
  if (is_own_grid(awaited_rank)) return std::nullopt;  // no call of another rank ends it
  // Messages that a rank sent before it went on or left arrive long before three more ticks.
  constexpr int kTicksToArrive = 3;
  auto apart = left_behind_by(parts_, awaited_rank);
  if (!apart) apart = held_by_transfer_of(parts_, awaited_rank);
  if (apart && ++stall_.ticks_apart >= kTicksToArrive) return apart;
  if (!parts_.session->has_left(awaited_rank) || ++stall_.ticks_since_left < kTicksToArrive) {
    return std::nullopt;
  }
  return Error(ErrorCode::remote,
               fmt::format("rank {} has finalized or destroyed its communicator, while rank {} "
                           "waits for it in a collective, a send or a receive",
                           awaited_rank, rank()))
      .with_origin(awaited_rank)
      .with_hint(
          "all ranks make the same calls, and both ends those that match, before they "
          "destroy");
}

void FailureWatch::watch_stall(TimePoint now) {
  const auto& record = parts_.notices->host().stall;
  const std::uint64_t waiting = __atomic_load_n(&record.waiting, __ATOMIC_ACQUIRE);
  const int awaited_rank = waiting == 0 ? -1 : device::stalled_rank(waiting);
  // Informs the ranks that would otherwise give up on this rank while it waits itself.
  if (parts_.settings->collective_timeout || (waiting == 0 && parts_.flight->is_wanted())) {
    parts_.session->peers().send_waiting(awaited_rank);
  }
  if (waiting == 0) return watch_others();
  if (const auto error = different_calls(parts_)) return give_up(*error);
  if (Network* const network = parts_.live_network) {
    network->probe(now, &parts_.notices->host().abort);
  }
  const std::uint64_t since = __atomic_load_n(&record.since_ns, __ATOMIC_RELAXED);
  if (!stall_.watch.goes_on(since, now, std::chrono::nanoseconds(device::kStallReportNs))) {
    stall_.ticks_since_left = 0;
    stall_.ticks_apart = 0;
    inquiry_.forget();
    return;
  }
  if (const auto error = hopeless_wait(awaited_rank)) return give_up(*error);
  constexpr auto kTimeToAnswer = std::chrono::milliseconds(500);
  if (stall_.watch.is_due_within(kTimeToAnswer, now) && !sees_calls_of(parts_, awaited_rank)) {
    inquiry_.ask(awaited_rank);
  }
  if (const auto lasted = stall_.watch.due(now)) {
    log_stall(*lasted, awaited_rank);
    inquiry_.forget();  // the rank may have gone on, or stopped, when the next report is due
  }
}

}  // namespace oriel::comm

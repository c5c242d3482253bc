// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/team_processes.hpp"

#include <algorithm>

#include "window/registration/window_manager.hpp"

namespace oriel::window {
namespace {

/// Groups slots by process, in the order of each process's first slot.
std::vector<std::vector<int>> group_by_process(const std::vector<TeamMember>& members) {
  std::vector<std::vector<int>> processes;
  std::vector<std::uint64_t> numbers;
  for (std::size_t slot = 0; slot < members.size(); ++slot) {
    const auto found = std::find(numbers.begin(), numbers.end(), members[slot].process);
    const auto place = static_cast<std::size_t>(found - numbers.begin());
    if (found == numbers.end()) {
      numbers.push_back(members[slot].process);
      processes.emplace_back();
    }
    processes[place].push_back(static_cast<int>(slot));
  }
  return processes;
}

}  // namespace

TeamProcesses::TeamProcesses(const WindowManagerOptions& options)
    : slots_(group_by_process(options.members)) {
  const int index = options.team->index();
  const auto domain_of = [&](int slot) {
    return options.descriptor_domains.empty()
               ? 0
               : options.descriptor_domains.at(static_cast<std::size_t>(slot));
  };
  std::vector<int> speakers;  // one world rank for each process of this rank's domain
  for (std::size_t process = 0; process < slots_.size(); ++process) {
    const auto& slots = slots_[process];
    if (std::find(slots.begin(), slots.end(), index) != slots.end()) own_ = process;
    const bool near = domain_of(slots.front()) == domain_of(index);
    places_.push_back(near ? std::optional(speakers.size()) : std::nullopt);
    if (near) speakers.push_back(options.team->world_rank(slots.front()));
  }
  speaks_ = slots_.size() > 1 && slots_[own_].front() == index;
  if (!speaks_ || speakers.size() == 1) return;
  // The first world rank of a team separates teams; the number separates communicators.
  exchange_ = std::make_unique<FdExchange>(options.key, options.communicator,
                                           static_cast<std::uint64_t>(options.team->world_rank(0)),
                                           std::move(speakers), static_cast<int>(*places_[own_]));
  exchange_->watch(*options.world);
}

bool TeamProcesses::has_several_ranks_in_one() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const std::vector<int>& slots) { return slots.size() > 1; });
}

bool TeamProcesses::spans_domains() const {
  return std::find(places_.begin(), places_.end(), std::nullopt) != places_.end();
}

Result<FdSocketName> TeamProcesses::listen() {
  if (exchange_ == nullptr || exchange_->connected()) return FdSocketName{};
  return exchange_->listen();
}

Task<Status> TeamProcesses::dial(EventLoop& loop, std::vector<FdSocketName> names,
                                 Deadline deadline) {
  if (exchange_ == nullptr || exchange_->connected()) co_return Status();
  std::vector<FdSocketName> near;
  for (std::size_t process = 0; process < names.size(); ++process) {
    if (places_[process]) near.push_back(names[process]);
  }
  co_return co_await exchange_->dial(loop, std::move(near), deadline);
}

void TeamProcesses::disconnect() {
  if (exchange_ != nullptr) exchange_->disconnect();
}

void TeamProcesses::stop_listening() {
  if (exchange_ != nullptr && !exchange_->connected()) exchange_->disconnect();
}

}  // namespace oriel::window

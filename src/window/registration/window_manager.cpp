// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/window_manager.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/registration/registration_run.hpp"

namespace oriel::window {
namespace {

/// The slots of each process, in the order in which the processes first occur.
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

Error no_window(const void* handle) {
  return Error(
             ErrorCode::invalid_argument,
             fmt::format("{} is no window of this communicator, or has been deregistered", handle))
      .with_scope(Scope::window);
}

}  // namespace

WindowManager::WindowManager(WindowManagerOptions options)
    : options_(std::move(options)), processes_(group_by_process(options_.members)) {
  const int index = options_.team->index();
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const auto& slots = processes_[i];
    if (std::find(slots.begin(), slots.end(), index) != slots.end()) own_process_ = i;
    const auto first = static_cast<std::size_t>(slots.front());
    domains_.push_back(options_.descriptor_domains.empty() ? 0
                                                           : options_.descriptor_domains.at(first));
  }
  std::vector<int> speakers;  // of this rank's domain
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const bool near = domains_[i] == domains_[own_process_];
    places_.push_back(near ? static_cast<int>(speakers.size()) : -1);
    if (near) speakers.push_back(options_.team->world_rank(processes_[i].front()));
  }
  speaks_ = processes_.size() > 1 && processes_[own_process_].front() == index;
  if (speaks_ && speakers.size() > 1) {
    // The place of the team in the world tells teams apart; the number, communicators.
    exchange_ =
        std::make_unique<FdExchange>(options_.key, options_.communicator,
                                     static_cast<std::uint64_t>(options_.team->world_rank(0)),
                                     std::move(speakers), places_[own_process_]);
    exchange_->watch(*options_.world);
  }
}

WindowManager::~WindowManager() {
  for (const auto& [handle, record] : records_) {
    for (Participant* participant : options_.participants) {
      participant->deregister(record.window.serial);
    }
    options_.sink->destroy(record.window.handle);
  }
}

Task<Result<std::vector<RegisteredWindow>>> WindowManager::register_batch(
    EventLoop& loop, boot::Operation operation, std::vector<WindowRequest> requests,
    Deadline deadline) {
  RegistrationRun run(*this, loop, operation, std::move(requests), deadline);
  auto registered = co_await run.run();
  if (registered.ok()) co_return std::move(registered);
  // Nothing of this rank's own in the text: the error is the same on every rank.
  co_return std::move(registered).error().with_context("registering windows");
}

Status WindowManager::deregister(const void* handle) {
  decltype(records_)::node_type node;  // unmaps after the lock has been released
  {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(handle);
    if (found == records_.end()) return no_window(handle);
    registry_.erase(found->second.window.serial);  // it stays if there is no memory for this
    node = records_.extract(found);
  }
  const Record& record = node.mapped();
  for (Participant* participant : options_.participants) {
    participant->deregister(record.window.serial);
  }
  options_.sink->destroy(record.window.handle);
  return {};
}

std::optional<RegisteredWindow> WindowManager::find_handle(const void* handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(handle);
  if (found == records_.end()) return std::nullopt;
  return found->second.window;
}

Result<std::vector<int>> WindowManager::mapped_ranks(const void* handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(handle);
  if (found == records_.end()) return no_window(handle);
  std::vector<int> ranks = found->second.mapping->mapped_slots();
  for (int& rank : ranks) rank = options_.team->world_rank(rank);
  return ranks;
}

std::size_t WindowManager::size() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

std::shared_ptr<FlatSpace> WindowManager::flat_space() const {
  const std::lock_guard lock(mutex_);
  return space_;
}

}  // namespace oriel::window

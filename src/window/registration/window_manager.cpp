// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/window_manager.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/registration/registration_run.hpp"

namespace oriel::window {
namespace {

Error no_window(const void* handle) {
  return Error(
             ErrorCode::invalid_argument,
             fmt::format("{} is no window of this communicator, or has been deregistered", handle))
      .with_scope(Scope::window)
      .with_hint("pass each handle once, to the communicator that has registered it");
}

}  // namespace

WindowManager::WindowManager(WindowManagerOptions options)
    : options_(std::move(options)), processes_(options_) {}

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
  // The context names nothing specific to this rank: the error is equal on every rank.
  co_return std::move(registered).error().with_context("registering windows");
}

Status WindowManager::deregister(const void* handle) {
  decltype(records_)::node_type node;  // unmaps after the lock is released
  {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(handle);
    if (found == records_.end()) return no_window(handle);
    registry_.erase(found->second.window.serial);
    node = records_.extract(found);
  }
  const Record& record = node.mapped();
  for (Participant* participant : options_.participants) {
    participant->deregister(record.window.serial);
  }
  options_.sink->destroy(record.window.handle);
  return {};
}

}  // namespace oriel::window

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/auth/secret.hpp"
#include "boot/link/rank_group.hpp"
#include "window/mapping/team_mapping.hpp"
#include "window/memory/mappable_memory.hpp"
#include "window/registration/participant.hpp"
#include "window/registration/registration.hpp"
#include "window/registration/registry.hpp"
#include "window/registration/team_processes.hpp"

namespace oriel::window {

/// What a communicator gives its window manager. All pointers must outlive the manager.
struct WindowManagerOptions {
  boot::Group* world = nullptr;  ///< all ranks
  boot::Group* team = nullptr;   ///< the LSA team of this rank
  Memory* memory = nullptr;
  std::vector<TeamMember> members;  ///< of the team, in its order
  /// Of each member a number that those share between which file descriptors travel; the same on
  /// all ranks of the team. To the others memory travels by fabric handles, and no socket is opened
  /// for them. Empty: descriptors travel between all. Members of one process share it.
  std::vector<int> descriptor_domains;
  std::size_t slot_bytes = 0;      ///< the same on all ranks of the team, or registration fails
  boot::Key key;                   ///< of this communicator, for the exchange of descriptors
  std::uint64_t communicator = 0;  ///< a random number, the same on all ranks
  WindowSink* sink = nullptr;
  std::vector<Participant*> participants;  ///< the same ones in the same order on all ranks
};

/// The windows of one communicator on one rank.
///
/// register_batch() is collective and runs in a loop; one at a time, and while it runs the groups
/// are in use. All other calls are local, do not block, and may come from any thread at any time,
/// also during a registration.
///
/// Destroying the manager deregisters what is left; no registration may be in progress, and nothing
/// may use its windows any more.
class WindowManager {
 public:
  explicit WindowManager(WindowManagerOptions options);
  ~WindowManager();
  WindowManager(const WindowManager&) = delete;
  WindowManager& operator=(const WindowManager&) = delete;

  /// Registers windows, on every rank of the world as many, with the same sizes and flags, in the
  /// same order; pointers are each rank's own. All become visible on all ranks or none on any: if
  /// any rank fails at any step, every rank returns the same error with the rank where it arose,
  /// and nothing is left behind. Only a failure of the connections themselves (a dead rank) may
  /// read differently on different ranks. O(log ranks) rounds for the whole batch. Each wait of the
  /// descriptor exchange ends by `deadline`; those of the groups by their transport's.
  Task<Result<std::vector<RegisteredWindow>>> register_batch(EventLoop& loop,
                                                             boot::Operation operation,
                                                             std::vector<WindowRequest> requests,
                                                             Deadline deadline);

  /// Removes one window on this rank. The caller has made sure that nothing uses it here, and that
  /// peers do not reach into it any more. invalid_argument for a handle that is not of this
  /// communicator or has been deregistered.
  Status deregister(const void* handle);

  /// The window that holds the whole range, by the rule of Registry::find(). For collectives: no
  /// lock, no allocation, O(log windows).
  std::optional<RegisteredWindow> find(const void* pointer, std::size_t bytes) const noexcept {
    return registry_.find(pointer, bytes);
  }

 private:
  friend class RegistrationRun;

  /// A registered window and what it holds.
  struct Record {
    RegisteredWindow window;
    std::shared_ptr<TeamMapping> mapping;
  };

  WindowManagerOptions options_;
  TeamProcesses processes_;
  std::uint64_t batches_ = 0;
  std::uint64_t next_serial_ = 1;

  Registry registry_;
  std::mutex mutex_;
  std::map<const void*, Record> records_;  // by handle
};

}  // namespace oriel::window

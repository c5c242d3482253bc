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

/// Parameters of a window manager. All pointers must outlive the manager.
struct WindowManagerOptions {
  boot::Group* world = nullptr;  ///< all ranks
  boot::Group* team = nullptr;   ///< the LSA team of this rank
  Memory* memory = nullptr;
  std::vector<TeamMember> members;  ///< members of the team, in team order
  /// Domain number of each member; equal on all ranks of the team. File descriptors travel only
  /// between members of one domain. Memory reaches other members by fabric handles, without a
  /// socket. Empty: all members share one domain. Members of one process have the same number.
  std::vector<int> descriptor_domains;
  std::size_t slot_bytes = 0;      ///< must be equal on all ranks of the team, or registration
                                   ///< fails
  boot::Key key;                   ///< communicator's key for the exchange of descriptors
  std::uint64_t communicator = 0;  ///< random number of the communicator, equal on all ranks
  WindowSink* sink = nullptr;
  std::vector<Participant*> participants;  ///< equal on all ranks, in the same order
};

/// The windows of one communicator on one rank.
///
/// register_batch() is collective and runs in an event loop. Only one may run at a time, and it
/// uses the groups while it runs. All other calls are local and do not wait for other ranks. They
/// may come from any thread at any time, even during a registration.
///
/// The destructor deregisters the remaining windows. No registration may be in progress, and
/// nothing may use the windows any more.
class WindowManager {
 public:
  explicit WindowManager(WindowManagerOptions options);
  ~WindowManager();
  WindowManager(const WindowManager&) = delete;
  WindowManager& operator=(const WindowManager&) = delete;

  /// Registers windows. Every rank of the world passes the same number, sizes and flags in the same
  /// order, with its own pointers. Either all windows become visible on all ranks or none on any.
  /// If a rank fails at any step, every rank returns the same error with that rank as origin, and
  /// nothing is kept. Only a failure of the connections (a dead rank) may read differently on
  /// different ranks. A batch takes one world agreement per kAgreedWindows windows; its other
  /// rounds do not depend on its size. Each wait of the descriptor exchange ends by `deadline`,
  /// each wait of the groups by their transport's timeout.
  Task<Result<std::vector<RegisteredWindow>>> register_batch(EventLoop& loop,
                                                             boot::Operation operation,
                                                             std::vector<WindowRequest> requests,
                                                             Deadline deadline);

  /// Deregisters one window on this rank. The caller ensures that neither this rank nor its peers
  /// use the window any more. invalid_argument: the handle is not of this communicator or has been
  /// deregistered.
  Status deregister(const void* handle);

  /// Returns the window that contains the whole range, by the rule of Registry::find(). Takes no
  /// lock, allocates nothing and takes O(log windows), so that collectives can call it.
  std::optional<RegisteredWindow> find(const void* pointer, std::size_t bytes) const noexcept {
    return registry_.find(pointer, bytes);
  }

 private:
  friend class RegistrationRun;

  /// A registered window and the mapping that it keeps alive.
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

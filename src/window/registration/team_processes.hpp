// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "window/exchange/fd_exchange.hpp"

namespace oriel::window {

struct WindowManagerOptions;

/// The processes of an LSA team, and the unix sockets between processes that share file
/// descriptors.
class TeamProcesses {
 public:
  explicit TeamProcesses(const WindowManagerOptions& options);

  std::size_t count() const { return slots_.size(); }
  std::size_t own() const { return own_; }
  /// Returns the slots of a process. The rank of the first slot speaks for the process.
  const std::vector<int>& slots_of(std::size_t process) const { return slots_[process]; }
  /// Returns whether this rank speaks for its process and the team has other processes.
  bool speaks() const { return speaks_; }
  bool has_several_ranks_in_one() const;
  /// Returns whether some processes can be reached by fabric handles only.
  bool spans_domains() const;
  /// Returns the index of a process in the exchange; nullopt for processes of other domains.
  std::optional<std::size_t> place_of(std::size_t process) const { return places_[process]; }

  /// Returns null unless this rank speaks and its domain has other processes.
  FdExchange* exchange() { return exchange_.get(); }
  /// Opens a listener for the peers. If no connection is needed, the returned name is meaningless.
  Result<FdSocketName> listen();
  /// Connects to the peers with a lower index unless already connected; `names` is by process.
  Task<Status> dial(EventLoop& loop, std::vector<FdSocketName> names, Deadline deadline);
  /// Closes the sockets. All ranks of the team do so, and reconnect when they need to.
  void disconnect();
  /// Closes the listener if it was not used.
  void stop_listening();

 private:
  std::vector<std::vector<int>> slots_;  // by process
  std::vector<std::optional<std::size_t>> places_;
  std::size_t own_ = 0;
  bool speaks_ = false;
  std::unique_ptr<FdExchange> exchange_;
};

}  // namespace oriel::window

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "net/failover/path_agreement.hpp"
#include "net/failover/path_health.hpp"
#include "net/failover/path_probe.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/soft_send_queue.hpp"

namespace oriel::net {

/// One path of a queue, as this end sees it.
struct PathPlace {
  NicSoft* nic = nullptr;
  std::uint32_t wire = 0;
  std::string name;  ///< for errors
  /// Numbers (QueueSetup::number) of the queue on this path and of the queue that probes the path.
  /// The queue of path 0 has the number of FailoverQueue::Options::queue.
  std::uint32_t queue = 0;
  std::uint32_t probe = 0;
};

/// Description of a path for the peer.
struct PathEnd {
  WireAddress address;
  std::uint32_t queue = 0;
  std::uint32_t probe = 0;  ///< the queue by which the path is probed
};

/// State of a path: its queue on the NIC, its probe and its health.
struct FailoverPath {
  FailoverPath(const PathPlace& made_of, const PathPolicy& policy, TimePoint now)
      : place(made_of), health(policy, now) {}
  ~FailoverPath();
  FailoverPath(const FailoverPath&) = delete;
  FailoverPath& operator=(const FailoverPath&) = delete;

  /// Resets the queue and makes it ready to receive in `epoch`.
  Status listen(std::uint32_t epoch);
  /// Makes the queue ready to send.
  Status go();

  PathPlace place;
  PathHealth health;
  std::uint32_t queue = 0;
  bool owns_queue = false;       // path 0's queue belongs to the SendQueue
  std::uint32_t fetch_lkey = 0;  // lkey of the queue's slots for old values; 0 on path 0
  PathProbe probe;
  PathEnd peer;
  PathState seen = PathState::healthy;  // state in the last poll()
};

/// Paths of one queue, the best one first. Not thread-safe, but for answered().
class FailoverPaths {
 public:
  explicit FailoverPaths(const PathPolicy& policy) : policy_(policy) {}

  /// Adds a path of `queue`. The first path added must be that of the queue's own NIC.
  Status add(const PathPlace& place, const SendQueue& queue, KeyAliases& aliases, TimePoint now);
  std::size_t size() const { return paths_.size(); }
  FailoverPath& operator[](int path) { return *paths_[static_cast<std::size_t>(path)]; }
  std::vector<PathEnd> ends() const;
  /// Connects the probes to those of `peer`, which must have as many paths.
  Status connect(const std::vector<PathEnd>& peer);

  /// Takes answers to probes and sends probes that are due. If a path has become suspected, rings
  /// its queue's doorbell again. Returns whether it took an answer or sent a probe.
  bool poll(TimePoint now);
  /// Epochs of the probes, by path; 0 beyond the last path.
  using ProbeEpochs = std::array<std::uint32_t, kPathsMost>;
  /// Restarts probes that have failed at either end. Returns whether there was such a probe.
  bool mend_probes(const ProbeEpochs& peer, TimePoint now);
  ProbeEpochs probe_epochs() const;

  PathMask usable() const;
  bool all_usable() const;
  std::array<PathCause, kPathsMost> causes() const;
  std::string names() const;
  /// Returns when the latest answered probe was sent. Any thread.
  TimePoint answered() const;

 private:
  PathPolicy policy_;
  std::vector<std::unique_ptr<FailoverPath>> paths_;
};

}  // namespace oriel::net

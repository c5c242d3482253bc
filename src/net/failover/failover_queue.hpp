// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "net/failover/failover_channel.hpp"
#include "net/failover/failover_paths.hpp"
#include "net/failover/path_agreement.hpp"
#include "net/failover/path_health.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/queue/queue_records.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/soft_send_queue.hpp"

namespace oriel::net {

/// Send queue that goes on by another path when the path in use fails (docs/failover.md). Producers
/// hold its view and notice only a delay: ring, doorbell, completion and indexes stay the same.
/// Each path has a NIC here and one at the peer. On each NIC there is a queue over the same memory;
/// only one path's queue works at a time. Every request is executed exactly once.
///
/// The state that must survive a NIC is owned here. It is the ring, its completion index, and the
/// record of the peer's executed requests, with the old values of its last atomics.
///
/// Has no thread: whoever drives the NICs also calls progress(). Thread safety: any thread may call
/// anything but set-up and destruction. The NICs and the channel outlive it.
class FailoverQueue {
 public:
  using Path = PathPlace;
  using End = PathEnd;
  struct Options {
    SendQueue::Options queue;  ///< create() sets `records` and `aliases`
    /// True if WQEs name other keys than those of path 0's NIC: keys of queue.namer, or of another
    /// NIC of the peer. aliases(0) translates these keys for path 0.
    bool first_has_aliases = false;
    /// 1 to kPathsMost paths, the best one first; the peer has as many, in the same order. For
    /// paths to fail independently, choose NICs of different fault domains (topo::choose_nics
    /// does).
    std::vector<Path> paths;
    PathPolicy health;
    AgreementPolicy agreement;
    /// Delay before producers learn of a failure that the peer can explain better. It applies if
    /// the peer reports the end, has refused no request, and no path has failed here. It also
    /// applies if a request of the peer was refused or met an error. It does not apply if the queue
    /// in use has met an error here.
    Duration second_hand_pause{};
    FailoverChannel* channel = nullptr;
    const Clock* clock = &SteadyClock::instance();
  };

  static Result<std::unique_ptr<FailoverQueue>> create(Options options);
  ~FailoverQueue() = default;
  FailoverQueue(const FailoverQueue&) = delete;
  FailoverQueue& operator=(const FailoverQueue&) = delete;

  /// Returns this end's paths, in the order of Options::paths.
  std::vector<End> ends() const;
  /// Connects all paths to the peer's, which does the same in turn. Work goes by path 0.
  Status connect(const std::vector<End>& peer);

  const device::queue::QueueView& view() const { return queue_->view(); }
  SendQueue& queue() { return *queue_; }
  /// Returns the translation of keys for a path. WQEs name the keys of path 0 unless Options say
  /// otherwise.
  KeyAliases& aliases(std::size_t path) { return aliases_[path]; }

  /// Checks the paths, takes the peer's statements, and changes the path if needed. Does a bounded
  /// amount of work. Returns false if there was none, or if another thread is in progress().
  bool progress();

  /// Returns why the queue has ended: names the peer, and both ends' view of each path. Producers
  /// have received an error by then.
  std::optional<Error> failure() const;
  /// Once there is a failure: returns whether this end could not do what the peer had requested,
  /// which is a fault of this end only.
  bool is_at_fault() const;
  /// Returns when the latest request or probe was sent that the peer has answered, by any path.
  TimePoint answered() const;
  /// Requests a sign of life, unless a request is already open: probes the path in use. The probe
  /// uses no ring of the application, so that this works for queues to which only kernels can post.
  /// While no answer has come, the timeouts of the path run as if there were work.
  void ask();
  /// Says how urgently the queue has to be driven: often while it is not settled.
  struct Pace {
    bool is_settled = true;  ///< running or over
    int path = 0;            ///< path whose NIC has the work; -1: no NIC has it
    bool has_work = false;   ///< some work is not complete
  };
  Pace pace() const;

 private:
  explicit FailoverQueue(Options options);
  bool listen_to_peer(TimePoint now);
  bool poll_queue(TimePoint now);
  void process_report(FailoverPath& path, const QueueReport& report, TimePoint now);
  bool answer_question();
  bool choose(TimePoint now);
  bool act(TimePoint now);
  Status act(const PathAgreement::Action& action);
  void fence(FailoverPath& path);
  Status listen(FailoverPath& path, std::uint32_t epoch);
  void report_usable();
  void wake_producers();
  bool has_work() const;

  Options options_;
  mutable std::mutex mutex_;
  QueueRecords records_;
  std::array<KeyAliases, kPathsMost> aliases_;  // by path
  std::optional<SendQueue> queue_;
  FailoverPaths paths_;
  PathAgreement agreement_;
  std::uint64_t completed_ = 0;            // completion index last seen
  TimePoint last_received_{};              // latest answer to a part of a request
  std::optional<TimePoint> better_since_;  // both ends have found a better path usable since then
  std::optional<TimePoint> asked_;         // when ask() was called; empty once answered
  std::optional<CompletionRecord> fatal_;
  bool connected_ = false;
  struct Ending {
    std::optional<TimePoint> report_at;  // when to send the error to producers
    std::optional<Error> failure;
    bool is_at_fault = false;
  } ending_;
};

}  // namespace oriel::net

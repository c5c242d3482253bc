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

/// A send queue that goes on by another path when the one that it uses fails (docs/failover.md).
/// Producers hold its view and notice nothing of that but time: ring, doorbell, completion and
/// indexes stay the same. Each path has a NIC here and one at the peer, and a queue on each of them
/// over the same memory, of which one at a time works. Everything is executed exactly once.
///
/// What has to outlive a NIC is owned here: the ring, how far it is complete, and what the peer has
/// had executed, with the old values of its last atomics.
///
/// Does nothing by itself: whoever drives the NICs calls progress() too. Thread safety: any thread
/// may call anything but set-up and destruction. The NICs and the channel outlive it.
class FailoverQueue {
 public:
  using Path = PathPlace;
  using End = PathEnd;
  struct Options {
    SendQueue::Options queue;  ///< records and aliases are set here
    /// Entries name the keys of other NICs than those of path 0: of queue.namer, or of another one
    /// of the peer's. aliases(0) says what they are called on path 0.
    bool first_has_aliases = false;
    /// 1 to kPathsMost, the best one first; the peer has as many, in the same order. Paths that are
    /// to fail apart have NICs of different fault domains (topo::choose_nics says which).
    std::vector<Path> paths;
    PathPolicy health;
    AgreementPolicy agreement;
    /// An end that has seen no path fail itself, and hears that it is over, or whose peer's entry
    /// was refused, keeps it from its producers for so long: the other one can say more of it.
    Duration hearsay_pause{};
    FailoverChannel* channel = nullptr;
    const Clock* clock = &SteadyClock::instance();
  };

  static Result<std::unique_ptr<FailoverQueue>> create(Options options);
  ~FailoverQueue() = default;
  FailoverQueue(const FailoverQueue&) = delete;
  FailoverQueue& operator=(const FailoverQueue&) = delete;

  /// In the order of paths.
  std::vector<End> ends() const;
  /// Connects all paths to the peer's, which does the same in turn; work goes by path 0.
  Status connect(const std::vector<End>& peer);

  const device::queue::QueueView& view() const { return queue_->view(); }
  SendQueue& queue() { return *queue_; }
  /// What is called otherwise on a path than in entries, which name the keys of path 0 unless
  /// Options say otherwise.
  KeyAliases& aliases(std::size_t path) { return aliases_[path]; }

  /// Looks at the paths, hears the peer, and changes the path if need be. A bounded amount of work;
  /// false if there was none, or another thread is at it.
  bool progress();

  /// Why it is over: names the peer, and for each path what either end has seen. Producers have got
  /// an error by then.
  std::optional<Error> failure() const;
  /// Once there is a failure: this end could not do what the peer had asked for, which is nobody's
  /// fault but its own.
  bool is_at_fault() const;
  /// When the latest of the requests and probes that the peer has answered was sent, by whatever
  /// path.
  TimePoint answered() const;
  /// Has the peer answer something, unless it has yet to answer: a probe of the path in use, which
  /// stands in no ring, so that it is for queues that only kernels can post to. While it has no
  /// answer a path is as silent as one with work.
  void ask();
  /// For whoever drives it. While it is not settled it has to be driven often.
  struct Pace {
    bool is_settled = true;  ///< or over
    int path = 0;            ///< whose NIC has its work; -1: none's
    bool has_work = false;   ///< that is not complete
  };
  Pace pace() const;

 private:
  explicit FailoverQueue(Options options);
  bool listen_to_peer(TimePoint now);
  bool look_at_queue(TimePoint now);
  void look_at_report(FailoverPath& path, const QueueReport& report, TimePoint now);
  bool answer_question();
  bool choose(TimePoint now);
  bool act(TimePoint now);
  Status act(const PathAgreement::Action& action);
  void fence(FailoverPath& path);
  Status listen(FailoverPath& path, std::uint32_t epoch);
  void tell_usable();
  void tell_producers();
  bool has_work() const;

  Options options_;
  mutable std::mutex mutex_;
  QueueRecords records_;
  std::array<KeyAliases, kPathsMost> aliases_;  // by path
  std::optional<SendQueue> queue_;
  FailoverPaths paths_;
  PathAgreement agreement_;
  std::uint64_t completed_ = 0;            // as last seen
  TimePoint heard_{};                      // an answer to a part of an entry
  std::optional<TimePoint> better_since_;  // both ends have taken a better path for usable
  std::optional<TimePoint> asked_;         // whether the peer is there, and it has not answered
  std::optional<CompletionRecord> fatal_;
  bool connected_ = false;
  struct Ending {
    std::optional<TimePoint> tell_at;  // when to tell the producers
    std::optional<Error> failure;
    bool is_at_fault = false;
  } ending_;
};

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/links.hpp"
#include "boot/link/liveness.hpp"
#include "boot/link/rank_group.hpp"
#include "boot/link/transport.hpp"

namespace oriel::boot {

struct SessionOptions {
  SocketOptions socket;
};

/// One rank's membership of one communicator: proven, persistent links to the ranks at distance 2^k
/// on either side, and on them groups that run set-up protocols, and news of other ranks'
/// departure, death or abort. A session of one rank has no socket.
///
/// One operation at a time uses the links: it holds an Activity, which says in which loop the
/// operation waits and until when. While there is none a monitor may pump the links; messages of
/// operations that other ranks have begun already are kept.
///
/// Descriptors: an epoll set, an eventfd, one connection for each link, a listener until
/// stop_listening(), and during join a connection to the root service. A rank of 8 has 5 links.
///
/// After a death, an abort or a failed operation the session is of no more use: every later call
/// yields that first failure, on every rank that the news reaches.
///
/// Threads: operations one at a time; abort(), failure(), report_death() and the Idle calls from
/// any thread. Nothing here waits for another thread for longer than one non-blocking turn of the
/// links. Groups must not outlive their session, and no Activity may be alive when it is destroyed.
class Session final : private Transport {
 public:
  /// Joins the communicator of `id` as `rank` of `size`; ends once all ranks have joined.
  /// Collective. Sessions of one thread must be joined together, in one loop. Errors name the ranks
  /// that were missing, died, or joined with another size or the same number.
  static Task<Result<std::unique_ptr<Session>>> join(EventLoop& loop, UniqueId id, int rank,
                                                     int size, SessionOptions options,
                                                     Deadline deadline);
  /// For a rank that cannot even begin to join: tells the other ranks `reason`, for which they
  /// would wait until their deadlines. Takes a second at most; the error is why they could not be
  /// told.
  static Task<Status> decline(EventLoop& loop, UniqueId id, int rank, int size, Error reason,
                              SessionOptions options, Deadline deadline);

  /// Tells the other ranks that this one has left and closes. Does not wait, unless messages are
  /// still to be sent: then at most kFlushTime.
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The unique id's number: random, the same on all ranks.
  std::uint64_t number() const { return number_; }
  /// All ranks.
  Group& world() { return world_; }
  /// A key that only ranks of this communicator can derive.
  const Key& key(KeyPurpose purpose) const;

  class Activity;
  /// Begins an operation. Fails if one is in progress, or with the session's failure.
  Result<Activity> activate(EventLoop& loop, Deadline deadline);

  /// A group of these world ranks, in this order, linked to each other. Collective over them, needs
  /// an Activity.
  Task<Result<Group>> subgroup(std::vector<int> world_ranks);

  /// Listens no more: a group of ranks that have yet to be linked cannot be formed any more. Call
  /// it once every rank has formed its subgroups, as an operation of the world that has ended
  /// behind them shows.
  void stop_listening();

  /// Tells the other ranks that this one has made its last call. They go on with what they have of
  /// it already; what goes wrong here from now on is no longer told. Does not wait. Idempotent.
  void leave();
  /// Ends the session with `reason`, here and on every other rank. Does not wait. Idempotent.
  void abort(const Error& reason);
  /// Tells the session of a death seen from elsewhere (a pidfd), so that it tells the other ranks.
  void report_death(int rank, const std::string& how);
  /// A short message to any rank outside of all operations, as of kMaxNoteBytes; it may be lost.
  /// Notes travel while the links are pumped, be it by operations or by whoever watches idle
  /// sessions, on this rank and on those between. Does not wait; any thread.
  Status send_note(int to, ByteView text);
  /// The oldest note of `from` that has arrived and was not taken; any thread.
  std::optional<Bytes> take_note(int from);
  /// Tells the other ranks that this one has waited long for rank `on` outside of all operations,
  /// or no longer does (-1). An operation that is in progress speaks for itself. Does not wait; any
  /// thread.
  void tell_waiting(int on);
  /// The rank at the end of the chain of ranks that wait for each other from `on` on, as far as
  /// they have told: `on` if it waits for nobody, -1 if they wait in a circle. Any thread.
  int end_of_wait(int on) const;
  /// Why the session is of no more use, if so.
  std::optional<Error> failure() const;
  bool has_left(int rank) const;

  /// Has `epoll_fd` told of this session's links (EPOLLIN, with `token`, once; see rearm_idle)
  /// whenever no Activity is alive; any thread. At most one watcher.
  Status attach_idle(int epoll_fd, std::uint64_t token);
  void detach_idle();
  /// Turns the links once without waiting, unless an Activity is alive, and watches again. Yields
  /// what happened to the ranks since the last call, whoever learned it.
  std::vector<PeerEvent> pump_idle();
  /// When pump_idle() is to be called even if nothing is ready.
  Deadline idle_timer() const;

  static constexpr Duration kFlushTime = std::chrono::seconds(1);

 private:
  class RootLink;

  Session(const UniqueId& id, int rank, int size);

  // Transport, for the groups.
  Task<Status> send(int peer, Bytes message) override;
  Task<Result<Bytes>> receive(int peer) override;
  void give_up(const Error& reason) override;
  int news_fd() const override;
  Status take_news() override;

  Status make_links(const EventLoop& loop);
  Task<Status> connect(const UniqueId& id, SessionOptions options);
  Task<Status> meet(const UniqueId& id, SessionOptions options, RootLink& root);
  Task<Status> find_root(const DialTarget& target, Duration patience, RootLink& root);
  Task<Status> introduce(RootLink& root);
  Task<Status> link_up(RootLink& root);
  Task<Status> link_to(std::vector<int> peers);
  Task<Status> exchange_addresses();
  void number_hosts();
  bool can_link(const std::vector<int>& peers) const;
  /// Waits until something is ready (or a timer is due) and pumps. The timeout's message says
  /// `waiting_for`.
  Task<Status> turn(std::string waiting_for, int culprit);
  Status after_wait(Status waited, const std::string& waiting_for, int culprit);
  Error failed(Error error);  // with the lock held: gives up and yields it
  Error too_late(const std::string& waiting_for, int culprit, TimePoint now) const;
  void progressed();
  void tell_stuck(int on);
  std::optional<Error> blocked(int peer) const;
  void end_activity();
  void take_leave();
  void wake();
  void arm_idle(bool on);

  const pid_t owner_;  // a forked child must not speak for its parent
  const int rank_;
  const int size_;
  const std::uint64_t number_;
  std::array<Key, 4> keys_;  // by KeyPurpose, from 1 on
  Group world_;
  std::map<int, SocketAddress> addresses_;
  SocketAddress own_address_;
  bool found_root_ = false;  // it was there when last looked for
  bool introduced_ = false;  // the root service knows this rank

  mutable std::mutex mutex_;      // guards all below
  OwnedFd wake_;                  // in the links' poller
  std::unique_ptr<Links> links_;  // null for one rank
  bool listening_ = false;
  EventLoop* loop_ = nullptr;  // of the live Activity
  Deadline deadline_ = Deadline::never();
  TimePoint begun_;
  TimePoint progress_at_;
  Duration stuck_after_{};             // without progress, before the other ranks are told
  int stuck_on_ = -1;                  // what they have been told
  std::optional<Error> solo_failure_;  // for one rank, which has no links
  int idle_epoll_ = -1;
  std::uint64_t idle_token_ = 0;
};

/// An operation in progress. Move-only; ends when destroyed.
class [[nodiscard]] Session::Activity {
 public:
  Activity(Activity&& other) noexcept : session_(std::exchange(other.session_, nullptr)) {}
  Activity& operator=(Activity&& other) noexcept;
  ~Activity();

 private:
  friend class Session;
  explicit Activity(Session& session) : session_(&session) {}
  Session* session_;
};

}  // namespace oriel::boot

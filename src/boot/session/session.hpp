// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/rank_group.hpp"
#include "boot/session/peers.hpp"
#include "boot/session/session_transport.hpp"

namespace oriel::boot {

struct SessionOptions {
  SocketOptions socket;
};

class Session;

/// Arguments of one rank for a split of its session.
struct SplitCall {
  /// Ranks of one color form a session; a rank without a color takes part only in the exchange.
  std::optional<std::int32_t> color{};
  /// Orders the ranks of a color; equal keys are ordered by rank.
  std::int32_t key = 0;
  /// Reason why this rank cannot take part; all ranks then get this error.
  std::optional<Error> refused{};
  /// Called with the new session before it links, so that another thread may abort it. Called with
  /// null before the session is destroyed or returned.
  std::function<void(Session*)> on_session{};
};

/// Translates an error of a split's session for the parent's ranks: the origin becomes a rank of
/// the parent. `members` is SplitPart::members.
Error as_seen_by_parent(const Error& error, const std::vector<int>& members);

/// Result of a split on one rank.
struct SplitPart {
  std::unique_ptr<Session> session;  ///< null without a color
  std::vector<int> members;          ///< parent rank of each rank of `session`
};

/// Membership of one rank in one communicator. It has authenticated, persistent links to the ranks
/// at distance 2^k on either side. On these links run the groups of the set-up protocols, and the
/// notices of other ranks' departure, death or abort (Peers). A session of one rank has no socket.
///
/// One operation at a time uses the links. It holds an Activity, which sets the event loop and the
/// deadline of its waits. While there is none, a monitor may pump the links. Messages of operations
/// that other ranks have already started are kept.
///
/// Descriptors: an epoll set, an eventfd, one connection for each link, a listener until
/// stop_listening(), and during join a connection to the root service. A rank of 8 has 5 links.
///
/// After a death, an abort or an operation whose messages failed, the session is unusable. Every
/// later call returns that first failure, on every rank that the notice reaches. A refused split,
/// or a child that cannot link, leaves the session usable. If a session is destroyed, the other
/// ranks receive its departure.
///
/// Threads: operations run one at a time. Any thread may call peers(), abort(), leave(), failure()
/// and has_left(). Groups must not outlive their session. No Activity may exist when the session is
/// destroyed.
class Session {
 public:
  /// Joins the communicator of `id` as `rank` of `size`; completes once all ranks have joined.
  /// Collective. If a thread joins several sessions, it must do so concurrently, in one loop.
  /// Errors name the ranks that were missing, died, or joined with another size or the same number.
  static Task<Result<std::unique_ptr<Session>>> join(EventLoop& loop, UniqueId id, int rank,
                                                     int size, SessionOptions options,
                                                     Deadline deadline);
  /// Reports `reason` for a rank that cannot even start to join; the other ranks would otherwise
  /// wait until their deadlines. Takes one second at most. The error is why the report failed.
  static Task<Status> decline(EventLoop& loop, UniqueId id, int rank, int size, Error reason,
                              SessionOptions options, Deadline deadline);

  /// Makes one session of the ranks of each color; its secret derives from this session's. The
  /// ranks exchange addresses over this session's links, so no root service takes part. The new
  /// session is independent once the call has ended. Collective. If a rank cannot take part, all
  /// ranks get its error. If linking fails, the ranks of that color get the error.
  Task<Result<SplitPart>> split(EventLoop& loop, SplitCall call, Deadline deadline);

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns the session's number: random, the same on all ranks.
  std::uint64_t number() const { return number_; }
  /// The group of all ranks.
  Group& world() { return world_; }
  /// A key that is derived from this session's secret. After a split, every rank of the parent
  /// communicator can derive its children's keys as well.
  const Key& key(KeyPurpose purpose) const;

  class Activity;
  /// Starts an operation. Fails if one is in progress, or with the session's failure.
  Result<Activity> activate(EventLoop& loop, Deadline deadline);

  /// Forms a group of these world ranks, in this order, and links them. Collective over them;
  /// requires an Activity.
  Task<Result<Group>> subgroup(std::vector<int> world_ranks);

  /// Stops listening, so no group that needs new links can be formed any more. Call it once every
  /// rank has formed its subgroups, which a later operation of the world proves when it completes.
  void stop_listening();

  /// Returns the part that any thread may use: notices to the other ranks, and their state.
  Peers& peers() { return peers_; }
  void leave() { peers_.leave(); }
  void abort(const Error& reason) { peers_.abort(reason); }
  std::optional<Error> failure() const { return peers_.failure(); }
  bool has_left(int rank) const { return peers_.has_left(rank); }

 private:
  class Joining;
  class Splitting;

  Session(std::uint64_t number, const Key& secret, int rank, int size);
  /// Links this rank to its neighbours, whose addresses are known. Completes once all ranks are
  /// linked; the addresses of all ranks are then known.
  Task<Status> link_up();
  Task<Status> exchange_addresses();
  void note_address(int peer, const SocketAddress& address);
  void number_hosts();
  bool can_link(const std::vector<int>& peers) const;

  const int rank_;
  const int size_;
  const std::uint64_t number_;
  std::array<Key, 5> keys_;  // by KeyPurpose, from 1 on
  Peers peers_;
  SessionTransport transport_;
  Group world_;
  std::map<int, SocketAddress> addresses_;
  SocketAddress own_address_;
  bool listening_ = false;
  std::uint64_t splits_ = 0;  // number of the next split; a split uses the highest of all ranks
};

/// An operation in progress. Move-only; ends when destroyed.
class [[nodiscard]] Session::Activity {
 public:
  Activity(Activity&& other) noexcept : transport_(std::exchange(other.transport_, nullptr)) {}
  Activity& operator=(Activity&& other) noexcept {
    std::swap(transport_, other.transport_);
    return *this;
  }
  ~Activity() {
    if (transport_ != nullptr) transport_->end();
  }

 private:
  friend class Session;
  explicit Activity(SessionTransport& transport) : transport_(&transport) {}
  SessionTransport* transport_;
};

}  // namespace oriel::boot

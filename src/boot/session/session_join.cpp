// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/process_number.hpp"
#include "base/spare_descriptor.hpp"
#include "base/try.hpp"
#include "boot/session/root_link.hpp"
#include "boot/session/root_service.hpp"
#include "boot/session/session.hpp"

/// Finds the root service, sends the hello and links the rank, or reports why it cannot.
namespace oriel::boot {
namespace {

// Timeout for a root service that refuses connections before it has been reached.
constexpr Duration kRootTimeout = std::chrono::seconds(1);
// Timeout for a root service that refuses connections after it was reached; it then counts as dead.
constexpr Duration kReturnTimeout = std::chrono::milliseconds(400);

Result<DialTarget> root_target(const UniqueId& id, const Key& key, int rank,
                               const SocketOptions& options) {
  ORIEL_TRY(const SocketAddress address, seen_from_here(id.root, options));
  return DialTarget{.address = address,
                    .purpose = KeyPurpose::rendezvous,
                    .realm = id.number,
                    .key = key,
                    .claim = {.from = rank, .to = -1, .tag = 0}};
}

}  // namespace

/// State that a join needs only until its last link.
class Session::Joining {
 public:
  Joining(Session& session, const UniqueId& id, SessionOptions options)
      : session_(session),
        id_(id),
        options_(std::move(options)),
        root_(session.rank_, *session.peers_.links()) {}

  /// Links the rank. On failure, reports the reason to the other ranks if they know this rank.
  Task<Status> run();
  /// Returns whether the root service knows this rank, as far as can be seen here.
  bool introduced() const { return introduced_; }
  /// Returns whether the last attempt has reached the root service.
  bool found_root() const { return found_root_; }

 private:
  Task<Status> meet();
  Task<Status> find_root(const DialTarget& target, Duration timeout);
  Task<Status> introduce();
  Task<Status> link_up();
  EventLoop& loop() const { return session_.transport_.loop(); }
  Deadline deadline() const { return session_.transport_.deadline(); }

  Session& session_;
  UniqueId id_;
  SessionOptions options_;
  RootLink root_;
  bool introduced_ = false;
  bool found_root_ = false;
};

Task<Result<std::unique_ptr<Session>>> Session::join(EventLoop& loop, UniqueId id, int rank,
                                                     int size, SessionOptions options,
                                                     Deadline deadline) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    co_return Error(ErrorCode::invalid_argument,
                    fmt::format("rank {} of {} cannot be: sizes go from 1 to {}, ranks from 0 to "
                                "size - 1",
                                rank, size, kMaxRanks))
        .with_hint("pass the same number of ranks everywhere, and a rank below it");
  }
  RootService& root = RootService::instance();  // in a forked child, also closes the parent's
  ORIEL_CO_CHECK(root.check_unused(id.number));
  std::unique_ptr<Session> session(new Session(id.number, id.secret, rank, size));
  if (size == 1) {
    root.retire(id.number);
    co_return session;
  }
  Status joined = session->peers_.open(
      {.rank = rank, .size = size, .realm = id.number, .key = session->key(KeyPurpose::link)},
      loop.clock());
  bool introduced = false;
  bool found_root = false;
  if (joined.ok()) {
    ORIEL_CO_TRY(const Activity activity, session->activate(loop, deadline));
    Joining joining(*session, id, options);
    joined = co_await joining.run();
    introduced = joining.introduced();
    found_root = joining.found_root();
    if (!joined.ok()) session->abort(joined.error());
  }
  if (joined.ok()) co_return session;
  Error error = std::move(joined).error();
  const bool is_own = is_local_failure(error) || error.code() == ErrorCode::invalid_usage;
  if (is_own) error = std::move(error).with_origin(rank);
  if (!introduced && (found_root || is_local_failure(error))) {
    Error reason = error;
    session.reset();  // decline() may need its descriptors
    static_cast<void>(
        co_await decline(loop, id, rank, size, std::move(reason), std::move(options), deadline));
  }
  co_return error;
}

Task<Status> Session::decline(EventLoop& loop, UniqueId id, int rank, int size, Error reason,
                              SessionOptions options, Deadline deadline) {
  RootService& root = RootService::instance();
  if (size == 1) {
    root.retire(id.number);
    co_return Status();
  }
  const SpareDescriptor::Release release;
  const Key key = Key::derive(id.secret, KeyPurpose::rendezvous, id.number);
  ORIEL_CO_TRY(DialTarget target, root_target(id, key, rank, options.socket));
  constexpr std::uint32_t kTimeoutMs = 1000;  // the reason follows at once
  const RootHello hello = {.rank = rank,
                           .size = size,
                           .timeout_ms = kTimeoutMs,
                           .process = process_number(),
                           .address = id.root};
  co_return co_await notify_root(loop, std::move(target), hello, std::move(reason), deadline);
}

Task<Status> Session::Joining::run() {
  Status connected = co_await meet();
  introduced_ = root_.hello_sent();
  if (connected.ok()) connected = co_await link_up();
  {
    const auto lock = session_.peers_.lock();
    if (connected.ok()) {
      root_.done();
    } else {
      root_.give_up(connected.error());
    }
  }
  if (!connected.ok()) co_await root_.linger(loop());
  co_return connected;
}

Task<Status> Session::Joining::link_up() {
  // Only the root service notices a death before every rank is linked to all its neighbours.
  {
    const auto lock = session_.peers_.lock();
    ORIEL_CO_CHECK(root_.watch());
  }
  co_return co_await session_.link_up();
}

Task<Status> Session::Joining::find_root(const DialTarget& target, Duration timeout) {
  auto dialed = co_await dial(loop(), target, {.refused = timeout}, deadline());
  if (!dialed.ok()) {
    const bool died = std::exchange(found_root_, false) && is_refusal(dialed.error());
    if (died) co_return root_.gone();
    co_return std::move(dialed).error().with_context("finding the root service");
  }
  found_root_ = true;
  root_.take(std::move(dialed).value());
  co_return Status();
}

Task<Status> Session::Joining::meet() {
  ORIEL_CO_TRY(const DialTarget target, root_target(id_, session_.key(KeyPurpose::rendezvous),
                                                    session_.rank_, options_.socket));
  ORIEL_CO_CHECK(co_await find_root(target, kRootTimeout));
  // Unless an interface is selected, other ranks reach this rank where the root service does.
  ORIEL_CO_TRY(SocketAddress interface, local_address(root_.fd()));
  if (!options_.socket.ifname.empty()) {
    options_.socket.family = id_.root.family();
    ORIEL_CO_TRY(interface, choose_interface(options_.socket));
  }
  {
    const auto lock = session_.peers_.lock();
    ORIEL_CO_TRY(session_.own_address_,
                 session_.peers_.links()->acceptor().listen(interface.with_port(0)));
    session_.listening_ = true;
  }
  Status met = co_await introduce();
  // The root service waits only briefly between authentication and the hello. A rank that was
  // stopped or slow must connect again.
  Retries returns({});
  while (!met.ok() && root_.turned_away()) {
    const Deadline next = earlier(deadline(), Deadline::after(returns.pause(), loop().clock()));
    ORIEL_CO_CHECK(co_await loop().sleep_until(next));
    ORIEL_CO_CHECK(co_await find_root(target, kReturnTimeout));
    met = co_await introduce();
  }
  ORIEL_CO_CHECK(std::move(met));
  for (const auto& [peer, address] : *root_.peers()) session_.note_address(peer, address);
  co_return Status();
}

Task<Status> Session::Joining::introduce() {
  // Sets the deadline of the root service shortly before this rank's own: it knows who is missing.
  const auto left = deadline().remaining(loop().clock().now());
  const auto margin = std::min<Duration>(left / 10, std::chrono::milliseconds(250));
  const auto timeout = std::min<Duration>(left - margin, std::chrono::hours(24));
  const RootHello hello = {
      .rank = session_.rank_,
      .size = session_.size_,
      .timeout_ms = static_cast<std::uint32_t>(
          std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()),
      .process = process_number(),
      .address = session_.own_address_};
  ORIEL_CO_CHECK(root_.send_hello(hello));
  while (!root_.peers()) {
    Status ready = co_await loop().readable(root_.fd(), deadline());
    {
      const auto lock = session_.peers_.lock();
      ORIEL_CO_CHECK(
          session_.transport_.after_wait(std::move(ready), "the root service's reply", -1));
    }
    ORIEL_CO_CHECK(root_.read());
  }
  co_return Status();
}

}  // namespace oriel::boot

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>

#include "base/no_memory.hpp"
#include "base/process_number.hpp"
#include "base/spare_descriptor.hpp"
#include "base/try.hpp"
#include "boot/session/root_link.hpp"
#include "boot/session/root_service.hpp"
#include "boot/session/session.hpp"

/// How a rank finds the root service, introduces itself and links up, or tells why it cannot.
namespace oriel::boot {
namespace {

// How long a root service that refuses connections may take to come (back).
constexpr Duration kRootPatience = std::chrono::seconds(1);
// And one that has let go of this rank's connection: whoever refuses then has died.
constexpr Duration kReturnPatience = std::chrono::milliseconds(400);
constexpr Duration kReturnPause = std::chrono::milliseconds(10);

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

Task<Result<std::unique_ptr<Session>>> Session::join(EventLoop& loop, UniqueId id, int rank,
                                                     int size, SessionOptions options,
                                                     Deadline deadline) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    co_return Error(ErrorCode::invalid_argument,
                    fmt::format("rank {} of {} cannot be: sizes go from 1 to {}, ranks from 0 to "
                                "size - 1",
                                rank, size, kMaxRanks));
  }
  std::unique_ptr<Session> session;
  Status joined;
  try {
    session.reset(new Session(id, rank, size));
    RootService& root = RootService::instance();  // in a forked child also drops its parent's
    ORIEL_CO_CHECK(root.check_unused(id.number));
    if (size == 1) {
      root.retire(id.number);
      co_return session;
    }
    joined = session->make_links(loop);
    if (joined.ok()) {
      ORIEL_CO_TRY(const Activity activity, session->activate(loop, deadline));
      joined = co_await session->connect(id, options);
      if (!joined.ok()) session->give_up(joined.error());
    }
  } catch (const std::bad_alloc&) {
    joined = no_memory_error();
  }
  if (!joined.ok()) {
    Error error = std::move(joined).error();
    const bool is_own = is_local_failure(error) || error.code() == ErrorCode::invalid_usage;
    if (is_own) error = std::move(error).with_origin(rank);
    const bool introduced = session != nullptr && session->introduced_;
    const bool found_root = session != nullptr && session->found_root_;
    if (!introduced && (found_root || is_local_failure(error))) {
      Error reason = error;
      session.reset();  // its descriptors may be what decline() lacks
      static_cast<void>(
          co_await decline(loop, id, rank, size, std::move(reason), std::move(options), deadline));
    }
    co_return error;
  }
  co_return session;
}

Task<Status> Session::decline(EventLoop& loop, UniqueId id, int rank, int size, Error reason,
                              SessionOptions options, Deadline deadline) {
  RootService& root = RootService::instance();
  if (size == 1) {
    root.retire(id.number);
    co_return Status();
  }
  const SpareDescriptor::Loan loan;
  const Key key = Key::derive(id.secret, KeyPurpose::rendezvous, id.number);
  ORIEL_CO_TRY(DialTarget target, root_target(id, key, rank, options.socket));
  constexpr std::uint32_t kPatienceMs = 1000;  // the reason follows at once
  const RootHello hello = {.rank = rank,
                           .size = size,
                           .patience_ms = kPatienceMs,
                           .process = process_number(),
                           .address = id.root};
  co_return co_await tell_root(loop, std::move(target), hello, std::move(reason), deadline);
}

Status Session::make_links(const EventLoop& loop) {
  ORIEL_TRY(
      links_,
      Links::create({.rank = rank_, .size = size_, .realm = number_, .key = key(KeyPurpose::link)},
                    loop.clock()));
  wake_ = OwnedFd(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return system_error("eventfd");
  const int wake_fd = wake_.get();
  const auto watched = links_->poller().add(wake_fd, EPOLLIN, [wake_fd](std::uint32_t) {
    eventfd_t count = 0;
    static_cast<void>(sys().eventfd_read(wake_fd, &count));
  });
  if (!watched.ok()) return watched.error();
  return {};
}

Task<Status> Session::connect(const UniqueId& id, SessionOptions options) {
  RootLink root(rank_, *links_);
  Status connected;
  try {
    connected = co_await meet(id, std::move(options), root);
    introduced_ = root.greeted();
    if (connected.ok()) connected = co_await link_up(root);
  } catch (const std::bad_alloc&) {
    introduced_ = root.greeted();
    connected = no_memory_error();
  }
  {
    const std::lock_guard lock(mutex_);
    if (connected.ok()) {
      root.done();
    } else {
      root.give_up(connected.error());
    }
  }
  if (!connected.ok()) co_await root.linger(*loop_);
  co_return connected;
}

Task<Status> Session::link_up(RootLink& root) {
  // Until every rank is linked to every neighbour only the root service sees a rank die.
  {
    const std::lock_guard lock(mutex_);
    ORIEL_CO_CHECK(root.watch());
  }
  std::vector<int> neighbours = link_neighbours(rank_, size_);
  ORIEL_CO_CHECK(co_await link_to(std::move(neighbours)));
  co_return co_await exchange_addresses();
}

Task<Status> Session::find_root(const DialTarget& target, Duration patience, RootLink& root) {
  auto dialed = co_await dial(*loop_, target, patience, deadline_);
  if (!dialed.ok()) {
    const bool died = std::exchange(found_root_, false) && is_refusal(dialed.error());
    if (died) co_return root.gone();
    co_return std::move(dialed).error().with_context("finding the root service");
  }
  found_root_ = true;
  root.take(std::move(dialed).value());
  co_return Status();
}

Task<Status> Session::meet(const UniqueId& id, SessionOptions options, RootLink& root) {
  ORIEL_CO_TRY(const DialTarget target,
               root_target(id, key(KeyPurpose::rendezvous), rank_, options.socket));
  ORIEL_CO_CHECK(co_await find_root(target, kRootPatience, root));
  // Unless an interface is asked for, other ranks reach this one where the root service does.
  ORIEL_CO_TRY(SocketAddress interface, local_address(root.fd()));
  if (!options.socket.ifname.empty()) {
    options.socket.family = id.root.family();
    ORIEL_CO_TRY(interface, choose_interface(options.socket));
  }
  {
    const std::lock_guard lock(mutex_);
    ORIEL_CO_TRY(own_address_, links_->listen(interface.with_port(0)));
    listening_ = true;
  }
  Status met = co_await introduce(root);
  // The root service does not wait for long between a proof and the hello: a rank that is stopped
  // there, or is slow, has to come again.
  while (!met.ok() && root.turned_away()) {
    const Deadline next = earlier(deadline_, Deadline::after(kReturnPause, loop_->clock()));
    ORIEL_CO_CHECK(co_await loop_->sleep_until(next));
    ORIEL_CO_CHECK(co_await find_root(target, kReturnPatience, root));
    met = co_await introduce(root);
  }
  ORIEL_CO_CHECK(std::move(met));
  for (const auto& [peer, address] : *root.peers()) addresses_[peer] = address;
  co_return Status();
}

Task<Status> Session::introduce(RootLink& root) {
  // The root service speaks up a little before this rank's own deadline: it knows who is missing.
  const auto left = deadline_.remaining(loop_->clock().now());
  const auto margin = std::min<Duration>(left / 10, std::chrono::milliseconds(250));
  const auto patience = std::min<Duration>(left - margin, std::chrono::hours(24));
  const RootHello hello = {
      .rank = rank_,
      .size = size_,
      .patience_ms = static_cast<std::uint32_t>(
          std::chrono::duration_cast<std::chrono::milliseconds>(patience).count()),
      .process = process_number(),
      .address = own_address_};
  ORIEL_CO_CHECK(root.greet(hello));
  while (!root.peers()) {
    Status ready = co_await loop_->readable(root.fd(), deadline_);
    {
      const std::lock_guard lock(mutex_);
      ORIEL_CO_CHECK(after_wait(std::move(ready), "word from the root service", -1));
    }
    ORIEL_CO_CHECK(root.read());
  }
  co_return Status();
}

}  // namespace oriel::boot

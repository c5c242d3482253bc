// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/root_service.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/try.hpp"
#include "boot/link/vote_record.hpp"

namespace oriel::boot {
namespace {

// Timeout between a client's authentication and its hello. The connection of a slower rank is
// closed, and the rank retries (Session::Joining::meet).
constexpr Duration kHelloTime = std::chrono::seconds(2);
// Timeout for failing calls of the service itself. It retries, since ranks of other processes need
// it.
constexpr Duration kOwnTimeout = std::chrono::seconds(1);
constexpr std::size_t kRememberedIds = 4096;
constexpr std::size_t kLastWordBytes = 1 + ErrorRecord::kEncodedBytes;
static_assert(kLastWordBytes >= RootHello::kBytes);

const Clock& steady() {
  return SteadyClock::instance();
}

}  // namespace

RootService& RootService::instance() {
  static constinit std::atomic<RootService*> service{nullptr};
  RootService* current = service.load(std::memory_order_acquire);
  if (current != nullptr && current->owner_ == ::getpid()) return *current;
  auto* fresh = new RootService;
  fresh->inherited_ = current;
  if (service.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
    if (fresh->inherited_ != nullptr) fresh->inherited_->leave_to_parent();
    return *fresh;
  }
  delete fresh;
  return *current;
}

RootService::RootService() : owner_(::getpid()) {}

// In a forked child: closes the copies of the parent's descriptors. If the parent's thread held the
// lock at the fork, its data cannot be trusted and the copies stay open.
void RootService::leave_to_parent() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !running_) return;
  running_->poller.disown();
  running_.reset();
}

Result<UniqueId> RootService::create_id(const SocketOptions& options, Duration expiry) {
  ORIEL_TRY(const SocketAddress interface, choose_interface(options));
  UniqueId id;
  id.secret = Key::random();
  id.number = random_number();

  const std::lock_guard lock(mutex_);
  ORIEL_CHECK(ensure_running());
  auto listener = listener_for(interface);
  if (listener.ok()) {
    id.root = listener.value();
    served_.emplace(id.number,
                    Served{Key::derive(id.secret, KeyPurpose::rendezvous, id.number),
                           Rendezvous(process_number(), Deadline::after(expiry, steady()))});
  }
  wake();  // also ends a thread that has nothing to do
  if (!listener.ok()) return std::move(listener).error().with_context("serving a rendezvous");
  return id;
}

void RootService::retire(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  remember(number, false);
  if (served_.erase(number) > 0) wake();
}

Status RootService::check_unused(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = ended_.find(number);
  if (found == ended_.end()) return {};
  const bool expired = found->second;
  return Error(ErrorCode::invalid_usage,
               expired ? "the unique id has expired: no rank came soon enough after it was made"
                       : "the unique id has been used: a communicator, or an attempt to start one, "
                         "had it before")
      .with_hint(kUsedIdHint);
}

// The caller holds the lock.
void RootService::remember(std::uint64_t number, bool expired) {
  if (!ended_.emplace(number, expired).second) return;
  ended_in_order_.push_back(number);
  if (ended_in_order_.size() <= kRememberedIds) return;
  ended_.erase(ended_in_order_.front());
  ended_in_order_.pop_front();
}

Status RootService::ensure_running() {
  if (running_) return {};
  thread_.leave_to_library();  // the previous thread has ended, or is about to return
  ORIEL_TRY(Poller poller, Poller::create());
  auto running = std::make_unique<Running>(std::move(poller));
  running->wake = OwnedFd(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!running->wake) return system_error("eventfd");
  const int wake_fd = running->wake.get();
  const auto token = running->poller.add(wake_fd, EPOLLIN, [wake_fd](std::uint32_t) {
    eventfd_t count = 0;
    static_cast<void>(sys().eventfd_read(wake_fd, &count));
  });
  if (!token.ok()) return token.error();
  running->acceptor = std::make_unique<Acceptor>(
      running->poller, steady(), KeyPurpose::rendezvous,
      [this](std::uint64_t number) -> const Key* {
        const auto it = served_.find(number);
        return it == served_.end() ? nullptr : &it->second.key;
      },
      [this](AuthenticatedConnection connection) { on_authenticated(std::move(connection)); });

  OwnedThread::Options options;
  options.name = "oriel-root";
  options.body = [this] { serve(); };
  options.failed = [this](const Error&) {
    const std::lock_guard lock(mutex_);
    end();
  };
  options.stop = [this] {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake();
  };
  // The new thread waits for the lock, which the caller holds.
  ORIEL_TRY(thread_, OwnedThread::start(std::move(options)));
  running_ = std::move(running);
  return {};
}

Result<SocketAddress> RootService::listener_for(const SocketAddress& interface) {
  const std::string name = interface.to_string();
  const auto it = running_->listeners.find(name);
  if (it != running_->listeners.end()) return it->second;
  ORIEL_TRY(const SocketAddress address, running_->acceptor->listen(interface));
  running_->listeners.emplace(name, address);
  return address;
}

// The caller, the service's thread, holds the lock and returns next.
void RootService::end() {
  running_.reset();
  served_.clear();
}

void RootService::serve() {
  Retries waits({.local = kOwnTimeout});
  for (;;) {
    Deadline deadline = Deadline::never();
    Poller* poller = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stop_ || served_.empty()) return end();
      deadline = next_timer();
      poller = &running_->poller;
    }
    // Only this thread destroys the poller; others may add listeners meanwhile.
    auto events = poller->wait(deadline, steady());
    if (!events.ok() &&
        waits.after(events.error(), steady().now()) == Retries::Decision::try_again) {
      std::this_thread::sleep_for(waits.pause());
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (!events.ok()) return end();
    waits.succeeded();
    running_->poller.dispatch(events.value());
    on_time(steady().now());
  }
}

/// Returns the client with the earliest hello deadline; null if all clients have sent their hello.
RootService::Client* RootService::next_without_hello() {
  auto& waiting = running_->before_hello;
  for (; !waiting.empty(); waiting.pop_front()) {
    const auto it = running_->clients.find(waiting.front());
    if (it != running_->clients.end() && !it->second.has_hello) return &it->second;
  }
  return nullptr;
}

Deadline RootService::next_timer() {
  Deadline next = running_->acceptor->next_expiry();
  for (const auto& [number, served] : served_) {
    next = earlier(next, served.rendezvous.next_timer());
  }
  const Client* const silent = next_without_hello();
  return silent != nullptr ? earlier(next, silent->hello_deadline) : next;
}

void RootService::wake() {
  if (running_) raise_event(running_->wake);
}

void RootService::on_authenticated(AuthenticatedConnection connection) {
  const Rendezvous::Connection id = next_client_++;
  const auto token = Retries::at_once([&] {
    return running_->poller.add(connection.fd.get(), EPOLLIN,
                                [this, id](std::uint32_t) { on_client(id); });
  });
  if (!token.ok()) return;  // the rank sees its connection close and retries
  running_->clients.emplace(id, Client{.fd = std::move(connection.fd),
                                       .token = token.value(),
                                       .number = connection.realm,
                                       .hello_deadline = Deadline::after(kHelloTime, steady())});
  running_->before_hello.push_back(id);
}

void RootService::on_client(Rendezvous::Connection id) {
  Client& client = running_->clients.at(id);
  const auto served = served_.find(client.number);
  std::array<std::byte, kLastWordBytes> buffer;
  const std::size_t limit = client.has_hello ? kLastWordBytes : RootHello::kBytes;
  const auto got = Retries::at_once([&] {
    return read_some(client.fd.get(), std::span(buffer).first(limit - client.received.size()));
  });
  if (!got.ok() || got.value().closed || served == served_.end()) return drop(id);
  client.received.insert(client.received.end(), buffer.begin(),
                         buffer.begin() + static_cast<std::ptrdiff_t>(got.value().bytes));
  Rendezvous& rendezvous = served->second.rendezvous;
  if (client.has_hello) {
    if (!on_last_word(id, client, rendezvous)) return;
    deliver(client.number);  // before this rank sees its connection close, and may exit
    return drop(id);
  }
  if (client.received.size() < RootHello::kBytes) return;
  const auto hello = RootHello::decode(client.received);
  if (!hello.ok()) return drop(id);
  rendezvous.on_hello(id, hello.value(), steady().now());
  client.has_hello = true;
  client.received.clear();
  deliver(client.number);
}

bool RootService::on_last_word(Rendezvous::Connection id, const Client& client,
                               Rendezvous& rendezvous) {
  if (client.received.empty()) return false;
  if (client.received[0] == kRootDone) {
    rendezvous.on_done(id);
    return true;
  }
  if (client.received[0] != kRootGaveUp) return true;
  if (client.received.size() < kLastWordBytes) return false;
  ByteReader reader(ByteView(client.received).subspan(1));
  std::optional<Error> reason;
  if (ErrorRecord::decode(reader, reason).ok()) {
    rendezvous.on_gave_up(id, *reason, steady().now());
  }
  return true;
}

void RootService::drop(Rendezvous::Connection id) {
  const auto it = running_->clients.find(id);
  if (it == running_->clients.end()) return;
  const std::uint64_t number = it->second.number;
  running_->poller.remove(it->second.token);
  running_->clients.erase(it);
  const auto served = served_.find(number);
  if (served == served_.end()) return;
  served->second.rendezvous.on_closed(id, steady().now());
  deliver(number);
}

// Writes the outgoing frames. A frame is far smaller than an empty socket buffer, and a client gets
// at most three. So if a frame cannot be written at once, its reader is dead.
void RootService::deliver(std::uint64_t number) {
  const auto served = served_.find(number);
  if (served == served_.end()) return;
  std::vector<Rendezvous::Connection> broken;
  for (const auto& [to, frame] : served->second.rendezvous.take_outgoing()) {
    const auto client = running_->clients.find(to);
    if (client == running_->clients.end()) continue;
    const ByteView view = frame;
    const auto sent =
        Retries::at_once([&] { return write_some(client->second.fd.get(), std::span(&view, 1)); });
    if (!sent.ok() || sent.value().bytes != view.size()) broken.push_back(to);
  }
  for (const auto id : broken) drop(id);
}

void RootService::on_time(TimePoint now) {
  running_->acceptor->expire();
  for (const Client* silent = next_without_hello();
       silent != nullptr && silent->hello_deadline.expired(now); silent = next_without_hello()) {
    const Rendezvous::Connection id = running_->before_hello.front();
    running_->before_hello.pop_front();
    // The hello may have arrived in time, while this process was stopped.
    on_client(id);
    const auto it = running_->clients.find(id);
    if (it != running_->clients.end() && !it->second.has_hello) drop(id);
  }
  const auto& shortage = running_->acceptor->shortage();
  std::vector<std::uint64_t> numbers;
  for (auto& [number, served] : served_) {
    if (shortage) served.rendezvous.on_shortage(*shortage, now);
    served.rendezvous.on_time(now);
    numbers.push_back(number);
  }
  for (const auto number : numbers) deliver(number);
  remove_finished();
}

void RootService::remove_finished() {
  for (auto it = served_.begin(); it != served_.end();) {
    if (!it->second.rendezvous.finished()) {
      ++it;
      continue;
    }
    auto& clients = running_->clients;
    for (auto client = clients.begin(); client != clients.end();) {
      if (client->second.number != it->first) {
        ++client;
        continue;
      }
      running_->poller.remove(client->second.token);
      client = clients.erase(client);
    }
    remember(it->first, !it->second.rendezvous.anyone_came());
    it = served_.erase(it);
  }
}

Result<UniqueId> create_unique_id(const SocketOptions& options, Duration expiry) {
  return RootService::instance().create_id(options, expiry);
}

}  // namespace oriel::boot

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/acceptor.hpp"

#include <algorithm>
#include <atomic>

#include <sys/resource.h>

#include "base/short_memory.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr int kAcceptsAtOnce = 64;  // then the proofs of those accepted get their turn
constexpr rlim_t kShareOfLimit = 8;
constexpr std::size_t kMostOfProcess = 1024;

std::atomic<std::size_t> unproven_of_process{0};

std::size_t budget_of_process() {
  rlimit files{};
  if (sys().getrlimit(RLIMIT_NOFILE, &files) != 0) return Acceptor::kLeastPending;
  return static_cast<std::size_t>(std::min<rlim_t>(files.rlim_cur / kShareOfLimit, kMostOfProcess));
}

}  // namespace

Acceptor::Acceptor(Poller& poller, const Clock& clock, KeyPurpose purpose,
                   AuthResponder::KeyLookup lookup, std::function<void(ProvenConnection)> on_proven)
    : poller_(&poller),
      clock_(&clock),
      purpose_(purpose),
      lookup_(std::move(lookup)),
      on_proven_(std::move(on_proven)) {}

Acceptor::~Acceptor() {
  stop();
}

void Acceptor::stop() {
  while (!pending_.empty()) close(pending_.begin());
  for (const Listening& listening : listeners_) poller_->remove(listening.token);
  listeners_.clear();
  refused_by_system_.reset();
}

Result<SocketAddress> Acceptor::listen(const SocketAddress& local) {
  ORIEL_TRY(Listener listener, listen_tcp(local));
  const int fd = listener.fd.get();
  const SocketAddress address = listener.address;
  budget_ = budget_of_process();
  ORIEL_TRY(const Poller::Token token,
            poller_->add(fd, EPOLLIN, [this, fd](std::uint32_t) { accept_from(fd); }));
  listeners_.push_back({std::move(listener), token});
  return address;
}

void Acceptor::accept_from(int listener_fd) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto accepted = accept_one(listener_fd);
    if (!accepted.ok()) {
      // Linux asks for a descriptor before it looks whether a connection is waiting, so this says
      // nothing once one has been accepted, and the one accepted gets its turn.
      if (i > 0) return;
      // Out of descriptors: an unproven connection gives its own up, else this pauses, for a
      // listener that stays readable would spin.
      if (pending_.empty()) {
        note_shortage(std::move(accepted).error());
        pause(true);
      } else {
        close(pending_.begin());
      }
      return;
    }
    refused_by_system_.reset();
    if (!accepted.value().valid()) return;
    admit(std::move(accepted).value());
  }
}

void Acceptor::note_shortage(Error error) {
  if (!refused_by_system_) short_since_ = clock_->now();
  refused_by_system_ = std::move(error);
}

std::optional<Error> Acceptor::shortage() const {
  if (clock_->now() - short_since_ < kShortageGrace) return std::nullopt;
  return refused_by_system_;
}

void Acceptor::admit(OwnedFd fd) {
  if (full()) close(pending_.begin());
  pending_.push_back(Pending{.fd = std::move(fd),
                             .deadline = Deadline::after(kProofTime, *clock_),
                             .responder = AuthResponder(purpose_)});
  ++unproven_of_process;
  const auto it = std::prev(pending_.end());
  // Without a word from here its maker would wait for long.
  const auto token = despite_short_memory([&] {
    return poller_->add(it->fd.get(), EPOLLIN, [this, it](std::uint32_t) { read_proof(it); });
  });
  if (!token.ok()) return forget(it);
  it->token = token.value();
  // A fresh socket's buffer takes 48 bytes; one that does not is not worth waiting for.
  const ByteView challenge = it->responder.challenge();
  const auto sent = write_some(it->fd.get(), std::span(&challenge, 1));
  if (!sent.ok() || sent.value().bytes != challenge.size()) close(it);
}

void Acceptor::read_proof(PendingIt it) {
  // Only as much as a response has, so that what follows it stays for the connection's next owner.
  const auto rest = std::span(it->received).subspan(it->have);
  const auto got = read_some(it->fd.get(), rest);
  if (!got.ok() || got.value().closed) return close(it);
  it->have += got.value().bytes;
  if (it->have < it->received.size()) return;

  auto confirmation = it->responder.answer(it->received, lookup_);
  if (!confirmation.ok()) return close(it);
  const ByteView answer = confirmation.value();
  const auto sent = write_some(it->fd.get(), std::span(&answer, 1));
  if (!sent.ok() || sent.value().bytes != answer.size()) return close(it);

  poller_->remove(it->token);
  ProvenConnection proven = {std::move(it->fd), it->responder.claim(), it->responder.realm()};
  forget(it);
  on_proven_(std::move(proven));
}

bool Acceptor::full() const {
  if (pending_.size() >= kMaxPending) return true;
  return pending_.size() >= kLeastPending && unproven_of_process >= budget_;
}

void Acceptor::close(PendingIt it) {
  poller_->remove(it->token);
  forget(it);
}

void Acceptor::forget(PendingIt it) {
  pending_.erase(it);
  --unproven_of_process;
}

void Acceptor::pause(bool paused) {
  for (const Listening& listening : listeners_) {
    static_cast<void>(poller_->watch(listening.token, paused ? 0U : EPOLLIN));
  }
  resume_ = paused ? Deadline::after(kPause, *clock_) : Deadline::never();
}

void Acceptor::expire() {
  const TimePoint now = clock_->now();
  while (!pending_.empty() && pending_.front().deadline.expired(now)) {
    const Poller::Token token = pending_.front().token;
    read_proof(pending_.begin());  // which may have come in time, to a process that was stopped
    if (!pending_.empty() && pending_.front().token == token) close(pending_.begin());
  }
  if (!resume_.is_never() && resume_.expired(now)) pause(false);
}

Deadline Acceptor::next_expiry() const {
  return pending_.empty() ? resume_ : earlier(pending_.front().deadline, resume_);
}

}  // namespace oriel::boot

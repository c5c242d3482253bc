// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/acceptor.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include <sys/resource.h>

#include "base/free_descriptors.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr int kAcceptsAtOnce = 64;  // then the accepted connections are read
constexpr rlim_t kShareOfLimit = 8;
constexpr std::size_t kMostOfProcess = 1024;

std::atomic<std::size_t> unauthenticated_of_process{0};

std::size_t budget_of_process() {
  rlimit files{};
  if (sys().getrlimit(RLIMIT_NOFILE, &files) != 0) return Acceptor::kLeastPending;
  return static_cast<std::size_t>(std::min<rlim_t>(files.rlim_cur / kShareOfLimit, kMostOfProcess));
}

bool lacks_descriptors(const Error& error) {
  return error.native().value == EMFILE || error.native().value == ENFILE;
}

}  // namespace

Acceptor::Acceptor(Poller& poller, const Clock& clock, KeyPurpose purpose,
                   AuthResponder::KeyLookup lookup,
                   std::function<void(AuthenticatedConnection)> on_authenticated,
                   AcceptorOptions options)
    : poller_(&poller),
      clock_(&clock),
      purpose_(purpose),
      lookup_(std::move(lookup)),
      on_authenticated_(std::move(on_authenticated)),
      options_(std::move(options)) {}

Acceptor::~Acceptor() {
  stop();
}

void Acceptor::stop() {
  while (!pending_.empty()) close(pending_.begin());
  for (const Listening& listening : listeners_) poller_->remove(listening.token);
  listeners_.clear();
  shortage_.reset();
}

Result<SocketAddress> Acceptor::listen(const SocketAddress& local) {
  ORIEL_TRY(Listener listener, listen_tcp(local));
  ORIEL_CHECK(listen_on(std::move(listener.fd)));
  return listener.address;
}

Status Acceptor::listen_on(OwnedFd listener) {
  budget_ = budget_of_process();
  queue_was_empty_ = false;
  const int fd = listener.get();
  ORIEL_TRY(const Poller::Token token,
            poller_->add(fd, EPOLLIN, [this, fd](std::uint32_t) { accept_from(fd); }));
  listeners_.push_back({std::move(listener), token});
  return {};
}

void Acceptor::accept_from(int listener_fd) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (full()) {
      if (i > 0) return;  // maybe none is waiting, so closes none
      if (!evict_oldest()) return pause();
    }
    auto accepted = accept_despite_limit(listener_fd);
    if (!accepted.ok()) {
      // Linux allocates a descriptor before it checks for a waiting connection. So once a
      // connection has been accepted, this error does not prove that another one waits.
      const bool is_short = lacks_descriptors(accepted.error());
      if (!is_short) note_failure(accepted.error());
      if (i > 0) return;
      const auto decision = accepts_.after(accepted.error(), clock_->now());
      if (decision != Retries::Decision::try_again) shortage_ = std::move(accepted).error();
      if (!is_short || !evict_oldest()) pause();  // a listener that stays readable would spin
      return;
    }
    accepts_.succeeded();
    shortage_.reset();
    if (!accepted.value().valid()) {
      queue_was_empty_ = true;
      return;
    }
    if (may_authenticate(accepted.value())) admit(std::move(accepted).value());
  }
}

bool Acceptor::may_authenticate(const OwnedFd& socket) const {
  if (options_.calls.may_authenticate == nullptr) return true;
  const auto answer = options_.calls.may_authenticate(socket);
  if (!answer.ok()) note_failure(answer.error());
  return answer.ok() && answer.value();
}

Result<OwnedFd> Acceptor::accept_despite_limit(int listener_fd) {
  auto accepted = options_.calls.accept(listener_fd);
  if (accepted.ok() || accepted.error().native().value != EMFILE) return accepted;
  // Each rank of a communicator takes a descriptor, and the number of ranks is unknown here.
  constexpr std::uint64_t kMoreToCome = 64;
  if (!raise_descriptor_limit(kMoreToCome)) return accepted;
  budget_ = budget_of_process();
  return options_.calls.accept(listener_fd);
}

/// Closes the oldest unauthenticated connection if it has had its turn. Returns whether a
/// connection has gone.
bool Acceptor::evict_oldest() {
  if (pending_.empty() || !pending_.front().turn.expired(clock_->now())) return false;
  const std::size_t before = pending_.size();
  const Poller::Token token = pending_.front().token;
  read_response(pending_.begin());  // the response may have arrived in time, while this process
                                    // was stopped
  if (pending_.empty() || pending_.front().token != token) return pending_.size() < before;
  close(pending_.begin());
  return true;
}

void Acceptor::note_failure(const Error& error) const {
  if (error.code() == ErrorCode::system && options_.on_failure) options_.on_failure(error);
}

void Acceptor::admit(OwnedFd fd) {
  pending_.push_back(Pending{.fd = std::move(fd),
                             .turn = Deadline::after(options_.turn, *clock_),
                             .deadline = Deadline::after(options_.limit, *clock_),
                             .responder = AuthResponder(purpose_)});
  ++unauthenticated_of_process;
  const auto it = std::prev(pending_.end());
  const auto token =
      poller_->add(it->fd.get(), EPOLLIN, [this, it](std::uint32_t) { read_response(it); });
  if (!token.ok()) {
    note_failure(token.error());
    return forget(it);
  }
  it->token = token.value();
  // A new socket's buffer holds these 48 bytes. If it does not, the connection is not worth a wait.
  const ByteView challenge = it->responder.challenge();
  const auto sent = options_.calls.write(it->fd.get(), std::span(&challenge, 1));
  if (!sent.ok()) note_failure(sent.error());
  if (!sent.ok() || sent.value().bytes != challenge.size()) close(it);
}

void Acceptor::read_response(PendingIt it) {
  // Reads no more than a response, so that later bytes remain for the connection's next owner.
  const auto rest = std::span(it->received).subspan(it->have);
  const auto got = options_.calls.read(it->fd.get(), rest);
  if (!got.ok()) note_failure(got.error());
  if (!got.ok() || got.value().closed) return close(it);
  it->have += got.value().bytes;
  if (it->have < it->received.size()) return;

  auto confirmation = it->responder.answer(it->received, lookup_);
  if (!confirmation.ok()) {
    const ByteView word = kAuthRefused;
    if (options_.calls.sends_refusal) {
      static_cast<void>(options_.calls.write(it->fd.get(), std::span(&word, 1)));
    }
    return close(it);
  }
  const ByteView answer = confirmation.value();
  const auto sent = options_.calls.write(it->fd.get(), std::span(&answer, 1));
  if (!sent.ok()) note_failure(sent.error());
  if (!sent.ok() || sent.value().bytes != answer.size()) return close(it);

  poller_->remove(it->token);
  AuthenticatedConnection authenticated = {std::move(it->fd), it->responder.claim(),
                                           it->responder.realm()};
  forget(it);
  on_authenticated_(std::move(authenticated));
}

bool Acceptor::full() const {
  if (pending_.size() >= kMaxPending) return true;
  return pending_.size() >= kLeastPending && unauthenticated_of_process >= budget_;
}

void Acceptor::close(PendingIt it) {
  poller_->remove(it->token);
  forget(it);
}

void Acceptor::forget(PendingIt it) {
  pending_.erase(it);
  --unauthenticated_of_process;
  resume();
}

/// Stops accepting. Connections stay in the kernel's queue until expire() or forget() resumes. This
/// happens once an unauthenticated connection has gone or had its turn, or a retry for descriptors
/// is due.
void Acceptor::pause() {
  for (const Listening& listening : listeners_) {
    static_cast<void>(poller_->watch(listening.token, 0U));
  }
  resume_ = Deadline::after(accepts_.pause(), *clock_);
  if (!pending_.empty()) resume_ = earlier(resume_, pending_.front().turn);
}

void Acceptor::resume() {
  if (resume_.is_never()) return;
  resume_ = Deadline::never();
  for (const Listening& listening : listeners_) {
    static_cast<void>(poller_->watch(listening.token, EPOLLIN));
  }
}

void Acceptor::expire() {
  const TimePoint now = clock_->now();
  while (!pending_.empty() && pending_.front().deadline.expired(now)) {
    const Poller::Token token = pending_.front().token;
    read_response(pending_.begin());  // the response may have arrived in time, while this process
                                      // was stopped
    if (!pending_.empty() && pending_.front().token == token) close(pending_.begin());
  }
  if (resume_.expired(now)) resume();
}

Deadline Acceptor::next_expiry() const {
  return pending_.empty() ? resume_ : earlier(pending_.front().deadline, resume_);
}

}  // namespace oriel::boot

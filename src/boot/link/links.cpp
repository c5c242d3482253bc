// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/links.hpp"

#include <algorithm>
#include <array>
#include <new>

#include <fmt/format.h>

#include "base/short_memory.hpp"
#include "base/try.hpp"
#include "boot/auth/cut_off.hpp"

namespace oriel::boot {
namespace {

constexpr Duration kFirstRetryPause = std::chrono::milliseconds(2);
constexpr Duration kLongestRetryPause = std::chrono::milliseconds(100);
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr int kReadsAtOnce = 16;  // then the other links get their turn
constexpr std::size_t kBuffersAtOnce = 16;
constexpr std::size_t kNoteBacklogMost = std::size_t{1} << 20;  // of a link that takes notes

// Whether a notice of departure, already checked, names `peer`.
bool names(ByteView departures, int peer) {
  ByteReader reader(departures);
  while (reader.left() > 0) {
    if (reader.get<std::int32_t>() == peer) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<Links>> Links::create(Identity identity, const Clock& clock) {
  ORIEL_TRY(Poller poller, Poller::create());
  return std::unique_ptr<Links>(new Links(std::move(identity), clock, std::move(poller)));
}

Links::Links(Identity identity, const Clock& clock, Poller poller)
    : identity_(std::move(identity)),
      clock_(&clock),
      poller_(std::move(poller)),
      liveness_(identity_.rank, identity_.size),
      acceptor_(
          poller_, clock, KeyPurpose::link,
          [this](std::uint64_t realm) {
            return realm == identity_.realm ? &identity_.key : nullptr;
          },
          [this](ProvenConnection connection) { on_proven(std::move(connection)); }),
      scratch_(kReadBytes) {}

Links::~Links() {
  for (const auto& [peer, link] : links_) poller_.remove(link.token);
  for (const auto& [peer, dial] : dials_) poller_.remove(dial.token);
}

Result<SocketAddress> Links::listen(const SocketAddress& local) {
  return acceptor_.listen(local);
}

Status Links::dial(int peer, const SocketAddress& address) {
  if (peer >= identity_.rank || peer < 0) {
    return Error(ErrorCode::internal,
                 fmt::format("rank {} does not connect to rank {}", identity_.rank, peer));
  }
  if (connected(peer) || dials_.contains(peer)) return {};
  Dial dial;
  dial.target = {.address = address,
                 .purpose = KeyPurpose::link,
                 .realm = identity_.realm,
                 .key = identity_.key,
                 .claim = {.from = identity_.rank, .to = peer, .tag = 0}};
  dial.pause = kFirstRetryPause;
  dials_.emplace(peer, std::move(dial));
  start_attempt(peer);
  return {};
}

void Links::start_attempt(int peer) {
  Dial& dial = dials_.at(peer);
  dial.retry = Deadline::never();
  auto dialer = Dialer::start(dial.target);
  if (!dialer.ok()) return fail_attempt(peer, dialer.error());
  auto token = poller_.add(dialer.value().fd(), dialer.value().wanted_events(),
                           [this, peer](std::uint32_t) { on_dial_event(peer); });
  if (!token.ok()) return fail_attempt(peer, token.error());
  dial.dialer = std::move(dialer).value();
  dial.token = token.value();
}

void Links::on_dial_event(int peer) {
  Dial& dial = dials_.at(peer);
  const Status advanced = dial.dialer->advance();
  if (!advanced.ok()) return fail_attempt(peer, advanced.error());
  if (!dial.dialer->proven()) {
    const Status watched = poller_.watch(dial.token, dial.dialer->wanted_events());
    if (!watched.ok()) fail_attempt(peer, watched.error());
    return;
  }
  poller_.remove(dial.token);
  OwnedFd fd = dial.dialer->release();
  dials_.erase(peer);
  add_link(peer, std::move(fd));
}

void Links::fail_attempt(int peer, const Error& error) {
  Dial& dial = dials_.at(peer);
  poller_.remove(dial.token);
  dial.token = 0;
  dial.dialer.reset();
  dial.trouble = error.to_string();
  const TimePoint now = clock_->now();
  if (is_local_failure(error)) {
    if (!dial.failing_here_since) dial.failing_here_since = now;
    if (now - *dial.failing_here_since >= Acceptor::kShortageGrace) {
      liveness_.aborted(identity_.rank,
                        Error(error).with_context(fmt::format("connecting to rank {}", peer)));
      dials_.erase(peer);
      return;
    }
  } else {
    dial.failing_here_since.reset();
  }
  // A rank's listener is open from before its address is known until nobody connects any more.
  if (is_refusal(error)) {
    if (!dial.refused_since) dial.refused_since = now;
    if (now - *dial.refused_since >= kRefusalGrace) {
      liveness_.died(peer,
                     fmt::format("nobody listens at {} any more", dial.target.address.to_string()));
      dials_.erase(peer);
      return;
    }
  } else {
    dial.refused_since.reset();
  }
  dial.retry = Deadline::after(dial.pause, *clock_);
  dial.pause = std::min(dial.pause * 2, kLongestRetryPause);
}

void Links::on_proven(ProvenConnection connection) {
  const int peer = connection.claim.from;
  const bool expected =
      connection.claim.to == identity_.rank && peer > identity_.rank && peer < identity_.size;
  // A second connection of a rank is some mistake of its process; the first one stands.
  if (!expected || connected(peer)) return;
  add_link(peer, std::move(connection.fd));
}

// The peer would take the end of the connection for this rank's death.
void Links::add_link(int peer, OwnedFd fd) {
  Link& link = *despite_short_memory([&] { return &links_[peer]; });
  link.fd = std::move(fd);
  const auto token = despite_short_memory([&] {
    return poller_.add(link.fd.get(), EPOLLIN,
                       [this, peer](std::uint32_t events) { on_link_event(peer, events); });
  });
  if (!token.ok()) {
    give_up_link(peer, link, "watching the connection with", token.error());
    links_.erase(peer);
    return;
  }
  link.token = token.value();
  for (Bytes& notice : despite_short_memory([this] { return liveness_.everything(); })) {
    enqueue(link, std::move(notice));
  }
  write_link(peer, link);
}

Deadline Links::next_timer() const {
  Deadline next = acceptor_.next_expiry();
  for (const auto& [peer, dial] : dials_) next = earlier(next, dial.retry);
  return next;
}

Status Links::pump() {
  ORIEL_CHECK(poller_.poll_once());
  acceptor_.expire();
  const TimePoint now = clock_->now();
  std::vector<int> due;
  for (const auto& [peer, dial] : dials_) {
    if (dial.retry.expired(now)) due.push_back(peer);
  }
  for (const int peer : due) start_attempt(peer);
  spread_news();
  return {};
}

void Links::spread_news() {
  // Writing may read a peer's last words, which may be news again; each is told once, so this ends.
  do {  // also without news: notes on their way are written here
    const std::vector<Bytes> news = liveness_.take_outgoing();
    for (auto& [peer, link] : links_) {
      for (const Bytes& notice : news) enqueue(link, notice);
      if (link.queue_bytes > 0) write_link(peer, link);
    }
  } while (liveness_.has_outgoing());
}

Status Links::send(int peer, ByteView message) {
  Link& link = links_.at(peer);
  if (message.size() > kMaxMessageBytes) {
    return Error(ErrorCode::internal, fmt::format("a message of {} bytes; the limit is {}",
                                                  message.size(), kMaxMessageBytes));
  }
  enqueue(link, despite_short_memory([&] { return encode_frame(FrameKind::message, message); }));
  write_link(peer, link);
  return {};
}

std::size_t Links::queued_bytes(int peer) const {
  const auto it = links_.find(peer);
  return it == links_.end() ? 0 : it->second.queue_bytes;
}

void Links::say_left() {
  despite_short_memory([this] { liveness_.left(identity_.rank); });
  spread_news();
  // A peer that has read our proof has a link already, and would take its end for our death.
  const Bytes words = despite_short_memory([this] {
    Bytes all;
    for (const Bytes& notice : liveness_.everything()) {
      all.insert(all.end(), notice.begin(), notice.end());
    }
    return all;
  });
  const ByteView view = words;
  for (auto& [peer, dial] : dials_) {
    if (!dial.dialer || !dial.dialer->awaits_verdict()) continue;
    static_cast<void>(write_some(dial.dialer->fd(), std::span(&view, 1)));
  }
}

bool Links::unsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    const Link& link = entry.second;
    return !link.closed && (link.queue_bytes > 0 || unsent_bytes(link.fd.get()) > 0);
  });
}

std::optional<Bytes> Links::pop(int peer) {
  const auto it = links_.find(peer);
  if (it == links_.end() || it->second.inbox.empty()) return std::nullopt;
  Link& link = it->second;
  Bytes message = std::move(link.inbox.front());
  link.inbox.pop_front();
  link.inbox_bytes -= message.size();
  update_interest(link);
  return message;
}

bool Links::ended(int peer) const {
  const auto it = links_.find(peer);
  return it != links_.end() && (it->second.closed || it->second.left);
}

std::string Links::dial_trouble(int peer) const {
  const auto it = dials_.find(peer);
  return it == dials_.end() ? std::string() : it->second.trouble;
}

void Links::enqueue(Link& link, Bytes frame) {
  if (link.closed) return;
  const std::size_t bytes = frame.size();
  despite_short_memory([&] { link.queue.push_back(std::move(frame)); });
  link.queue_bytes += bytes;
}

void Links::on_link_event(int peer, std::uint32_t events) {
  Link& link = links_.at(peer);
  if ((events & EPOLLOUT) != 0) write_link(peer, link);
  // After a hang-up what the kernel still holds is read whatever the inbox has: it is bounded, and
  // the last words of the peer are among it.
  const bool hung_up = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
  if ((events & EPOLLIN) != 0 || hung_up) read_link(peer, link, hung_up);
}

void Links::read_link(int peer, Link& link, bool to_the_end) {
  for (int i = 0; !link.closed && (to_the_end || i < kReadsAtOnce); ++i) {
    if (!to_the_end && link.inbox_bytes > kMaxInboxBytes) break;
    const auto got = read_some(link.fd.get(), scratch_);
    if (!got.ok()) return give_up_link(peer, link, "reading from", got.error());
    if (got.value().closed) {
      link.silent = link.silent || got.value().silent;
      return on_closed(peer, link);
    }
    if (got.value().would_block) break;
    std::vector<Frame> frames;
    const auto bytes = ByteView(scratch_).first(got.value().bytes);
    const Status fed = link.reader.feed(bytes, frames);
    take_frames(peer, link, std::move(frames));
    if (!fed.ok()) return give_up_link(peer, link, "reading from", fed.error());
    if (got.value().bytes < scratch_.size()) {
      if (!to_the_end) break;
    }
  }
  update_interest(link);
}

void Links::take_frames(int peer, Link& link, std::vector<Frame> frames) {
  for (Frame& frame : frames) {
    if (frame.kind == FrameKind::message) {
      const std::size_t bytes = frame.payload.size();
      despite_short_memory([&] { link.inbox.push_back(std::move(frame.payload)); });
      link.inbox_bytes += bytes;
      continue;
    }
    const Status taken =
        frame.kind == FrameKind::note ? take_note_frame(frame.payload)
        : frame.kind <= FrameKind::stuck
            ? despite_short_memory([&] { return liveness_.receive(frame); })
            : Status(Error(ErrorCode::remote, "a frame of the root service on a link of ranks"));
    if (!taken.ok()) {
      liveness_.aborted(
          identity_.rank,
          Error(taken.error()).with_context(fmt::format("reading from rank {}", peer)));
    } else if (frame.kind == FrameKind::left && names(frame.payload, peer)) {
      link.left = true;
    }
  }
}

Status Links::take_note_frame(ByteView payload) {
  ORIEL_TRY(Note note, despite_short_memory([&] { return decode_note(payload, identity_.size); }));
  if (note.to == identity_.rank) {
    notes_.put(std::move(note));
  } else {
    forward(note);  // written by the end of pump()
  }
  return {};
}

int Links::forward(const Note& note) {
  std::vector<int> linked;
  for (const auto& [peer, link] : links_) {
    if (!link.closed && link.queue_bytes < kNoteBacklogMost) linked.push_back(peer);
  }
  const int hop = next_hop(identity_.rank, note.to, identity_.size, linked);
  if (hop >= 0) enqueue(links_.at(hop), encode_frame(FrameKind::note, encode_note(note)));
  return hop;
}

Status Links::send_note(int to, ByteView text) {
  if (to < 0 || to >= identity_.size || text.size() > kMaxNoteBytes) {
    return Error(ErrorCode::internal,
                 fmt::format("a note of {} bytes to rank {}: up to {} bytes go to 0 to {}",
                             text.size(), to, kMaxNoteBytes, identity_.size - 1));
  }
  Note note{identity_.rank, to, Bytes(text.begin(), text.end())};
  if (to == identity_.rank) {
    notes_.put(std::move(note));
    return {};
  }
  const int hop = forward(note);
  if (hop >= 0) write_link(hop, links_.at(hop));
  return {};
}

void Links::write_link(int peer, Link& link) {
  while (!link.closed && !link.queue.empty()) {
    const auto sent = write_queue(link);
    if (!sent.ok()) return give_up_link(peer, link, "writing to", sent.error());
    if (sent.value().would_block) break;
    if (sent.value().closed) {
      link.silent = sent.value().silent;
      // Its last words may lie in our receive buffer; reading meets the end after them.
      link.queue.clear();
      link.queue_bytes = link.queue_offset = 0;
      return read_link(peer, link, true);
    }
    take_off_queue(link, sent.value().bytes);
  }
  update_interest(link);
}

Result<IoOutcome> Links::write_queue(const Link& link) {
  std::array<ByteView, kBuffersAtOnce> buffers;
  const std::size_t count = std::min(link.queue.size(), buffers.size());
  for (std::size_t i = 0; i < count; ++i) buffers[i] = link.queue[i];
  buffers[0] = buffers[0].subspan(link.queue_offset);
  return write_some(link.fd.get(), std::span(buffers).first(count));
}

void Links::take_off_queue(Link& link, std::size_t bytes) {
  link.queue_bytes -= bytes;
  link.queue_offset += bytes;
  while (!link.queue.empty() && link.queue_offset >= link.queue.front().size()) {
    link.queue_offset -= link.queue.front().size();
    link.queue.pop_front();
  }
}

// The peer has done nothing wrong, and should not take the end of the connection for our death: it
// gets our reason first, as far as the socket still takes it.
void Links::give_up_link(int peer, Link& link, const char* what, const Error& error) {
  liveness_.aborted(identity_.rank,
                    Error(error).with_context(fmt::format("{} rank {}", what, peer)));
  for (Bytes& notice : liveness_.everything()) enqueue(link, std::move(notice));
  while (!link.queue.empty()) {
    const auto sent = write_queue(link);
    if (!sent.ok() || sent.value().bytes == 0) break;
    take_off_queue(link, sent.value().bytes);
  }
  // Unread bytes would make the kernel reset the connection, and lose what it has not sent yet.
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const auto got = read_some(link.fd.get(), scratch_);
    if (!got.ok() || got.value().bytes == 0) break;
  }
  close_link(link);
}

void Links::close_link(Link& link) {
  poller_.remove(link.token);
  link.token = 0;
  link.closed = true;
  link.fd.reset();
  link.queue.clear();
  link.queue_bytes = link.queue_offset = 0;
}

void Links::on_closed(int peer, Link& link) {
  close_link(link);
  if (link.silent && !liveness_.has_left(peer) && is_cut_off(peer)) {
    return liveness_.aborted(
        identity_.rank,
        Error(ErrorCode::remote,
              fmt::format(
                  "rank {} hears nothing from rank {} and most other hosts it is linked to, so "
                  "it is this rank's own host that is cut off",
                  identity_.rank, peer))
            .with_origin(identity_.rank));
  }
  liveness_.died(peer, fmt::format("its connection to rank {} has closed", identity_.rank));
}

/// As judge_silence() has it, of the hosts to which this rank has links.
bool Links::is_cut_off(int peer) const {
  if (host_of_.empty()) return false;
  const auto host_of = [&](int rank) { return host_of_[static_cast<std::size_t>(rank)]; };
  std::map<std::uint32_t, HostSight> sights;
  for (const auto& [rank, link] : links_) {
    if (host_of(rank) == host_of(identity_.rank)) continue;
    if (link.closed && !link.silent) continue;  // it has told why
    HostSight& sight = sights.try_emplace(host_of(rank), HostSight::silent).first->second;
    if (!link.closed && is_heard(link.fd.get())) sight = HostSight::answers;
  }
  std::vector<HostSight> others;
  std::size_t of_peer = 0;
  for (const auto& [host, sight] : sights) {
    if (host == host_of(peer)) of_peer = others.size();
    others.push_back(sight);
  }
  const bool is_near = host_of(peer) == host_of(identity_.rank);
  return !is_near && judge_silence(others, of_peer, true) == CutOff::self;
}

void Links::update_interest(Link& link) {
  if (link.closed) return;
  std::uint32_t events = EPOLLRDHUP;
  if (link.inbox_bytes <= kMaxInboxBytes) events |= EPOLLIN;
  if (!link.queue.empty()) events |= EPOLLOUT;
  const Status watched = poller_.watch(link.token, events);
  if (!watched.ok()) liveness_.aborted(identity_.rank, watched.error());
}

}  // namespace oriel::boot

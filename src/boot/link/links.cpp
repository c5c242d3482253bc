// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/links.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/auth/cut_off.hpp"

namespace oriel::boot {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kNoteBacklogMost = std::size_t{1} << 20;  // a link with a longer send queue
                                                                // takes no notes

// Returns whether `departures`, a notice that was already checked, names `peer`.
bool names(ByteView departures, int peer) {
  ByteReader reader(departures);
  while (reader.left() > 0) {
    if (reader.get<std::int32_t>() == peer) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<Links>> Links::create(LinkIdentity identity, const Clock& clock) {
  ORIEL_TRY(Poller poller, Poller::create());
  return std::unique_ptr<Links>(new Links(std::move(identity), clock, std::move(poller)));
}

Links::Links(LinkIdentity identity, const Clock& clock, Poller poller)
    : identity_(std::move(identity)),
      poller_(std::move(poller)),
      liveness_(identity_.rank, identity_.size),
      acceptor_(
          poller_, clock, KeyPurpose::link,
          [this](std::uint64_t realm) {
            return realm == identity_.realm ? &identity_.key : nullptr;
          },
          [this](AuthenticatedConnection connection) {
            const auto [from, to, tag] = connection.claim;
            const bool expected =
                to == identity_.rank && from > identity_.rank && from < identity_.size;
            // A second connection of a rank is a mistake of its process; the first one stays.
            if (expected && find(from) == nullptr) add_link(from, std::move(connection.fd));
          }),
      dials_(poller_, clock, identity_, liveness_,
             [this](int peer, OwnedFd fd) { add_link(peer, std::move(fd)); }),
      scratch_(kReadBytes) {}

Link* Links::find(int peer) {
  const auto it = links_.find(peer);
  return it == links_.end() ? nullptr : &it->second;
}

Status Links::dial(int peer, const SocketAddress& address) {
  if (links_.contains(peer)) return {};
  return dials_.start(peer, address);
}

void Links::add_link(int peer, OwnedFd fd) {
  const auto it = links_
                      .emplace(std::piecewise_construct, std::tuple(peer),
                               std::forward_as_tuple(poller_, std::move(fd)))
                      .first;
  Link& link = it->second;
  const Status watched = link.watch([this, peer](std::uint32_t events) {
    Link& ready = links_.at(peer);
    if ((events & EPOLLOUT) != 0) write(peer, ready);
    // After a hang-up, reads all bytes that the kernel still holds, even if the inbox is full.
    // Their number is bounded, and they include the peer's last frames.
    const bool hung_up = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    if ((events & EPOLLIN) != 0 || hung_up) read(peer, ready, hung_up);
  });
  if (!watched.ok()) {
    give_up(peer, link, "watching the connection with", watched.error());
    links_.erase(it);
    return;
  }
  for (Bytes& notice : liveness_.everything()) link.enqueue(std::move(notice));
  write(peer, link);
}

Deadline Links::next_timer() const {
  return earlier(acceptor_.next_expiry(), dials_.next_timer());
}

Status Links::pump() {
  ORIEL_CHECK(poller_.poll_once());
  acceptor_.expire();
  dials_.retry();
  send_notices();
  return {};
}

void Links::send_notices() {
  liveness_.spread(links_, [this](int peer, Link& link) { write(peer, link); });
}

Status Links::send(int peer, ByteView message) {
  if (message.size() > kMaxMessageBytes) {
    return Error(ErrorCode::internal, fmt::format("a message of {} bytes; the limit is {}",
                                                  message.size(), kMaxMessageBytes));
  }
  Link& link = links_.at(peer);
  link.enqueue(encode_frame(FrameKind::message, message));
  write(peer, link);
  return {};
}

void Links::send_departure() {
  liveness_.left(identity_.rank);
  send_notices();
  // A peer that has read our response already has a link, and would take its end for our death.
  Bytes words;
  for (const Bytes& notice : liveness_.everything()) {
    words.insert(words.end(), notice.begin(), notice.end());
  }
  dials_.send_to_unconfirmed(words);
}

bool Links::unsent() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.unsent(); });
}

void Links::read(int peer, Link& link, bool to_the_end) {
  std::vector<Frame> notices;
  const auto open = link.read(to_the_end, scratch_, notices);
  for (const Frame& notice : notices) take(peer, link, notice);
  if (!open.ok()) return give_up(peer, link, "reading from", open.error());
  if (open.value()) return;
  link.close();
  if (link.silent() && !liveness_.has_left(peer) && is_cut_off(peer)) {
    return liveness_.aborted(
        identity_.rank,
        Error(ErrorCode::remote,
              fmt::format("rank {} receives nothing from rank {} and most other hosts it is linked "
                          "to, so it is this rank's own host that is cut off",
                          identity_.rank, peer))
            .with_origin(identity_.rank));
  }
  liveness_.died(peer, fmt::format("its connection to rank {} has closed", identity_.rank));
}

void Links::write(int peer, Link& link) {
  const auto open = link.write();
  if (!open.ok()) return give_up(peer, link, "writing to", open.error());
  if (!open.value()) read(peer, link, true);  // the peer's last frames may be in our receive buffer
}

void Links::take(int peer, Link& link, const Frame& notice) {
  Status taken;
  if (notice.kind == FrameKind::note) {
    auto note = decode_note(notice.payload, identity_.size);
    if (!note.ok()) {
      taken = std::move(note).error();
    } else if (note.value().to == identity_.rank) {
      notes_.put(std::move(note).value());
    } else {
      forward(note.value());  // pump() writes it before it returns
    }
  } else if (notice.kind <= FrameKind::stuck) {
    taken = liveness_.receive(notice);
  } else {
    taken = Error(ErrorCode::remote, "a frame of the root service on a link of ranks");
  }
  if (!taken.ok()) {
    liveness_.aborted(identity_.rank,
                      Error(taken.error()).with_context(fmt::format("reading from rank {}", peer)));
  } else if (notice.kind == FrameKind::left && names(notice.payload, peer)) {
    link.note_departure();
  }
}

int Links::forward(const Note& note) {
  std::vector<int> linked;
  for (const auto& [peer, link] : links_) {
    if (!link.closed() && link.queued_bytes() < kNoteBacklogMost) linked.push_back(peer);
  }
  const int hop = next_hop(identity_.rank, note.to, identity_.size, linked);
  if (hop >= 0) links_.at(hop).enqueue(encode_frame(FrameKind::note, encode_note(note)));
  return hop;
}

Status Links::send_note(int to, ByteView text, NoteTopic topic) {
  if (to < 0 || to >= identity_.size || text.size() > kMaxNoteBytes) {
    return Error(ErrorCode::internal,
                 fmt::format("a note of {} bytes to rank {}: up to {} bytes go to 0 to {}",
                             text.size(), to, kMaxNoteBytes, identity_.size - 1));
  }
  Note note{identity_.rank, to, Bytes(text.begin(), text.end()), topic};
  if (to == identity_.rank) {
    notes_.put(std::move(note));
    return {};
  }
  const int hop = forward(note);
  if (hop >= 0) write(hop, links_.at(hop));
  return {};
}

// Aborts this rank because of a failed call or a malformed frame, and closes the link. The peer
// first gets the reason, as far as the socket takes it. So it does not take the closed connection
// for our death.
void Links::give_up(int peer, Link& link, const char* what, const Error& error) {
  liveness_.aborted(identity_.rank,
                    Error(error).with_context(fmt::format("{} rank {}", what, peer)));
  for (Bytes& notice : liveness_.everything()) link.enqueue(std::move(notice));
  link.drain_and_close(scratch_);
}

/// Applies find_cut_off() to the hosts to which this rank has links.
bool Links::is_cut_off(int peer) const {
  if (host_of_.empty()) return false;
  const auto host_of = [&](int rank) { return host_of_[static_cast<std::size_t>(rank)]; };
  std::map<std::uint32_t, HostState> states;
  for (const auto& [rank, link] : links_) {
    if (host_of(rank) == host_of(identity_.rank)) continue;
    if (link.closed() && !link.silent()) continue;  // closed for another reason than a timeout
    HostState& state = states.try_emplace(host_of(rank), HostState::silent).first->second;
    if (link.has_answered()) state = HostState::answers;
  }
  std::vector<HostState> others;
  std::size_t of_peer = 0;
  for (const auto& [host, state] : states) {
    if (host == host_of(peer)) of_peer = others.size();
    others.push_back(state);
  }
  const bool is_near = host_of(peer) == host_of(identity_.rank);
  return !is_near && find_cut_off(others, of_peer, true) == CutOff::self;
}

}  // namespace oriel::boot

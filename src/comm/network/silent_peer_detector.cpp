// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/silent_peer_detector.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

namespace oriel::comm {
namespace {

/// Orders states by how much they say about a host: the greatest among its ranks counts.
int weight(boot::HostState state) {
  switch (state) {
    case boot::HostState::answers:
      return 3;
    case boot::HostState::slow:
      return 2;
    case boot::HostState::unknown:
      return 1;
    case boot::HostState::silent:
      return 0;
  }
  return 0;
}

/// Returns the state of a rank. `since`: time of the first poll after a queue had been silent for
/// `peer_timeout`.
boot::HostState host_state(const PeerState& peer, TimePoint since, TimePoint now,
                           Duration peer_timeout) {
  if (peer.answered >= since) return boot::HostState::answers;
  if (peer.error.has_value() && is_timeout(*peer.error)) return boot::HostState::silent;
  const bool is_slow = peer.answered > since - peer_timeout && now - since < peer_timeout;
  return is_slow ? boot::HostState::slow : boot::HostState::unknown;
}

/// Returns the state of each host that has a rank that has not left.
std::map<std::size_t, boot::HostState> host_states(std::span<const PeerState> peers,
                                                   TimePoint since, TimePoint now,
                                                   Duration peer_timeout) {
  std::map<std::size_t, boot::HostState> hosts;
  for (const PeerState& peer : peers) {
    if (peer.has_left) continue;
    const boot::HostState state = host_state(peer, since, now, peer_timeout);
    const auto [known, is_first] = hosts.emplace(peer.host, state);
    if (!is_first && weight(state) > weight(known->second)) known->second = state;
  }
  return hosts;
}

}  // namespace

void SilentPeerDetector::end_doubt() {
  if (!is_in_doubt_) return;
  leaving_.end();
  const std::lock_guard lock(mutex_);
  doubted_since_.reset();
  is_in_doubt_ = false;
}

Duration SilentPeerDetector::late_after(Duration peer_timeout) {
  constexpr Duration kLeast = std::chrono::milliseconds(1500);
  return std::max(peer_timeout / 4, std::min(peer_timeout, kLeast));
}

/// Counts only answers to requests sent since the first poll: an earlier answer may precede the
/// fault.
std::optional<SilentPeerDetector::Finding> SilentPeerDetector::detect(
    std::span<const PeerState> peers, std::size_t own_host, TimePoint now, Duration peer_timeout) {
  std::optional<std::size_t> silent;
  bool is_refused = false;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const PeerState& peer = peers[i];
    if (!peer.error.has_value()) continue;
    if (is_timeout(*peer.error)) {
      if (!silent.has_value()) silent = i;
    } else if (!may_be_of_leaving(peer.error->syndrome) || leaving_.is_over(peer.has_left, now)) {
      return Finding{i, boot::CutOff::peer};
    } else {
      is_refused = true;
    }
  }
  if (is_refused) {
    is_in_doubt_ = true;
    return std::nullopt;
  }
  if (!silent.has_value()) {
    end_doubt();
    return std::nullopt;
  }
  const PeerState& peer = peers[*silent];
  if (peer.host == own_host || peer.has_left) return Finding{*silent, boot::CutOff::peer};
  const std::lock_guard lock(mutex_);
  if (!doubted_since_.has_value()) doubted_since_ = now;
  if (who_ == boot::CutOff::undecided) {
    auto hosts = host_states(peers, *doubted_since_, now, peer_timeout);
    hosts.erase(own_host);
    std::vector<boot::HostState> others;
    std::size_t at = 0;
    for (const auto& [host, state] : hosts) {
      if (host == peer.host) at = others.size();  // found, as the peer has not left
      others.push_back(state);
    }
    const bool is_late = now - *doubted_since_ >= late_after(peer_timeout);
    who_ = boot::find_cut_off(others, at, is_late);
    is_in_doubt_ = who_ == boot::CutOff::undecided;
  }
  if (who_ == boot::CutOff::undecided) return std::nullopt;
  return Finding{*silent, who_};
}

}  // namespace oriel::comm

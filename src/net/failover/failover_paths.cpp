// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/failover_paths.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {

FailoverPath::~FailoverPath() {
  if (owns_queue) static_cast<void>(place.nic->destroy_queue(queue));
  if (fetch_lkey != 0) static_cast<void>(place.nic->deregister_memory(fetch_lkey));
}

Status FailoverPath::listen(std::uint32_t epoch) {
  ORIEL_CHECK(place.nic->to_reset(queue));
  ORIEL_CHECK(place.nic->to_init(queue));
  return place.nic->to_ready_to_receive(queue, {place.wire, peer.address, peer.queue, epoch});
}

Status FailoverPath::go() {
  ORIEL_CHECK(place.nic->to_ready_to_send(queue));
  return place.nic->ring_again(queue);
}

Status FailoverPaths::add(const PathPlace& place, const SendQueue& queue, KeyAliases& aliases,
                          TimePoint now) {
  auto path = std::make_unique<FailoverPath>(place, policy_, now);
  if (paths_.empty()) {
    path->queue = queue.number();
  } else {
    ORIEL_TRY(path->fetch_lkey, place.nic->register_memory(queue.fetch_slots()));
    aliases.add_local(queue.view().fetch_lkey, path->fetch_lkey);
    QueueSetup setup = queue.setup();
    setup.aliases = &aliases;
    setup.number = place.queue;
    setup.named = queue.number();
    ORIEL_TRY(path->queue, place.nic->create_queue(setup));
    path->owns_queue = true;
  }
  ORIEL_CHECK(path->probe.create({place.nic, place.probe, queue.view().peer, policy_.probe_every}));
  paths_.push_back(std::move(path));
  return {};
}

std::vector<PathEnd> FailoverPaths::ends() const {
  std::vector<PathEnd> ends;
  for (const auto& path : paths_) {
    ends.push_back({path->place.nic->address(path->place.wire), path->queue, path->probe.number()});
  }
  return ends;
}

Status FailoverPaths::connect(const std::vector<PathEnd>& peer) {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    FailoverPath& path = *paths_[i];
    path.peer = peer[i];
    ORIEL_CHECK(path.probe.connect(path.place.wire, peer[i].address, peer[i].probe));
  }
  return {};
}

bool FailoverPaths::poll(TimePoint now) {
  bool any = false;
  for (const auto& path : paths_) {
    if (path->probe.take_answer()) {
      path->health.probe_answered(now);
      any = true;
    }
    path->health.tick(now);
    if (!path->probe.is_open() && path->health.take_probe(now)) {
      path->probe.send();
      any = true;
    }
    const PathState state = path->health.state();
    // Rings again, because a missed doorbell looks like a dead path.
    const bool fresh = state == PathState::suspected && path->seen != state;
    if (fresh) static_cast<void>(path->place.nic->ring_again(path->queue));
    path->seen = state;
  }
  return any;
}

bool FailoverPaths::mend_probes(const ProbeEpochs& peer, TimePoint now) {
  bool any = false;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    PathProbe& probe = paths_[i]->probe;
    const std::uint32_t wanted = probe.wanted_epoch(peer[i], now);
    if (wanted <= probe.epoch()) continue;
    // Ignores failure: a path whose probe does not restart looks dead, and counts as dead.
    static_cast<void>(probe.restart(wanted));
    any = true;
  }
  return any;
}

FailoverPaths::ProbeEpochs FailoverPaths::probe_epochs() const {
  ProbeEpochs epochs{};
  for (std::size_t i = 0; i < paths_.size(); ++i) epochs[i] = paths_[i]->probe.epoch();
  return epochs;
}

PathMask FailoverPaths::usable() const {
  PathMask usable = 0;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i]->health.is_usable()) usable = static_cast<PathMask>(usable | 1u << i);
  }
  return usable;
}

bool FailoverPaths::all_usable() const {
  return std::all_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return path->health.is_usable(); });
}

std::array<PathCause, kPathsMost> FailoverPaths::causes() const {
  std::array<PathCause, kPathsMost> causes{};
  for (std::size_t i = 0; i < paths_.size(); ++i) causes[i] = paths_[i]->health.cause();
  return causes;
}

std::string FailoverPaths::names() const {
  std::string names;
  for (const auto& path : paths_) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", path->place.name);
  }
  return names;
}

TimePoint FailoverPaths::answered() const {
  TimePoint latest{};
  for (const auto& path : paths_) latest = std::max(latest, path->probe.answered());
  return latest;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/soft_ports.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/device/nic_process_starter.hpp"

namespace oriel::comm {
namespace {

constexpr int kLastTurns = 64;
constexpr Duration kLastAnswers = std::chrono::milliseconds(200);
constexpr Duration kNicProcessMost = std::chrono::seconds(20);

}  // namespace

SoftPorts::SoftPorts(const NetworkOptions& options)
    : options_(options), starting_(options.device->begin_nic_process(*options.settings)) {}

Task<Status> SoftPorts::await_process(EventLoop& loop, Deadline deadline) {
  constexpr Duration kBetweenPolls = std::chrono::milliseconds(2);
  const TimePoint begin = loop.clock().now();
  const Duration most = std::min<Duration>(deadline.remaining(begin) / 2, kNicProcessMost);
  const Deadline due = Deadline::at(begin + most);
  while (starting_ != nullptr && !starting_->has_answered() && !due.expired(loop.clock().now())) {
    const Deadline next = Deadline::at(loop.clock().now() + kBetweenPolls);
    ORIEL_CO_CHECK(co_await loop.sleep_until(next));
  }
  if (starting_ == nullptr) co_return Status();
  const Status ready = starting_->await_ready(Deadline::after(Duration::zero()));
  if (ready.ok()) co_return Status();
  warn_of_no_nic_process(ready.error());
  starting_.reset();
  co_return Status();
}

Status SoftPorts::make(const RankRoutes& routes) {
  ORIEL_TRY(memory_, options_.device->make_nic_memory(std::move(starting_)));
  const std::size_t nics = routes.nics();
  for (std::size_t at = 0; at < nics; ++at) {
    ports_.push_back(std::make_unique<SoftPort>());
    if (on_gpu()) ports_.back()->serve_gpu(*memory_.engine, nics > 1 ? &engine_mutex_ : nullptr);
    const std::string& interface = routes.interfaces()[at];
    ORIEL_CHECK(ports_.back()->open_fabric(options_, interface, routes.fabric_peers(at)));
    ORIEL_CHECK(check_backup_provider(at, routes.interfaces()));
  }
  return {};
}

/// Refuses providers whose adapters are not selected by a network interface: each path would use
/// the same adapter.
Status SoftPorts::check_backup_provider(std::size_t at,
                                        const std::vector<std::string>& interfaces) const {
  if (at == 0 || ports_[at]->fabric() == nullptr) return {};
  const std::string provider = ports_[at]->fabric()->provider();
  if (!provider.starts_with("efa")) return {};
  return Error(
             ErrorCode::invalid_usage,
             fmt::format("the provider {} does not distinguish {} and {}, so it has no backup path",
                         provider, interfaces[0], interfaces[at]))
      .with_hint("unset ORIEL_PATHS, or name another provider with ORIEL_FABRIC_PROVIDER");
}

Status SoftPorts::make_sleepers() {
  for (const auto& port : ports_) ORIEL_CHECK(port->make_sleeper());
  return {};
}

std::vector<Bytes> SoftPorts::fabric_addresses() const {
  std::vector<Bytes> addresses;
  for (std::size_t at = 0; at < ports_.size(); ++at) {
    if (ports_[at]->fabric() == nullptr) continue;
    addresses.resize(at);
    addresses.push_back(ports_[at]->fabric()->local_address());
  }
  return addresses;
}

void SoftPorts::end_sending() {
  for (const auto& port : ports_) port->nic().end_sending();
}

void SoftPorts::end_receiving() {
  for (const auto& port : ports_) {
    for (int turn = 0; turn < kLastTurns && port->nic().progress(); ++turn) continue;
    port->nic().end_receiving();
  }
}

bool SoftPorts::has_failed() const {
  return std::any_of(ports_.begin(), ports_.end(),
                     [](const auto& port) { return port->nic().has_failed(); });
}

void SoftPorts::stop_threads() {
  for (const auto& port : ports_) port->stop_thread();
}

void SoftPorts::answer_last() {
  // A GPU needs some time to complete copies.
  const Deadline last = Deadline::after(on_gpu() ? kLastAnswers : Duration::zero());
  for (const auto& port : ports_) {
    for (int turn = 0; port->nic().progress(); ++turn) {
      if (turn >= kLastTurns && last.expired(SteadyClock::instance().now())) break;
    }
    if (port->fabric() == nullptr) continue;
    try {
      static_cast<void>(port->fabric()->flush(Deadline::after(kLastAnswers)));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the answers are then lost
    }
  }
}

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/failover_driver.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {
namespace {

// Intervals between polls: usually, and while the ends of a queue negotiate a path.
constexpr Duration kPollInterval = std::chrono::milliseconds(5);
constexpr Duration kShortPollInterval = std::chrono::microseconds(500);
// Pauses of the thread, which polls while no other thread is awake: usually, and while ends
// negotiate.
constexpr Duration kNap = std::chrono::milliseconds(10);
constexpr Duration kShortNap = std::chrono::milliseconds(1);

/// Returns whether the peer has left and no work is posted for it: its closed paths are then no
/// failure.
bool is_done_with(const PeerQueue& queue) {
  return !queue.failover()->pace().has_work && queue.has_left();
}

}  // namespace

Status FailoverDriver::start(std::function<bool()> poll) {
  net::NicThread::Options options;
  options.progress = std::move(poll);
  options.begin = [this] { topo::run_this_thread_on(parts_.options.cpus); };
  options.sleep = [this] { std::this_thread::sleep_for(is_settled_ ? kNap : kShortNap); };
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  log_paths();
  return {};
}

/// Logs the interfaces, and warns if set-up uses the first one as well.
void FailoverDriver::log_paths() const {
  const Log log(parts_.options.rank());
  const auto& interfaces = parts_.routes.interfaces();
  log.info("interfaces of paths to ranks of other hosts, best first: {}",
           fmt::join(interfaces, ", "));
  const auto usable = boot::usable_interfaces({.ifname = parts_.options.settings->socket_ifname});
  if (!usable.ok() || usable->front() != interfaces.front()) return;
  log.warn(
      "set-up uses {} as well: where it is down, no other path can be agreed upon; hint: name "
      "the last interface of ORIEL_PATHS, or a further one, in ORIEL_SOCKET_IFNAME",
      interfaces.front());
}

bool FailoverDriver::progress() {
  bool any = false;
  for (std::size_t at = 1; at < parts_.ports.size(); ++at) {
    if (is_in_use(at)) any = parts_.ports.at(at).nic().progress() || any;
  }
  if (SteadyClock::instance().now() < next_poll_.load(std::memory_order_relaxed)) return any;
  return poll() || any;
}

bool FailoverDriver::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || is_over_) return false;
  bool any = false, is_settled = true;
  unsigned in_use = 1;
  for (const PeerQueue& queue : queues_) {
    if (queue.failover() == nullptr) {
      in_use |= 1u << queue.nic_index();
      continue;
    }
    if (is_done_with(queue)) continue;
    any = queue.failover()->progress() || any;
    const auto pace = queue.failover()->pace();
    is_settled = is_settled && pace.is_settled;
    if (pace.path >= 0) in_use |= 1u << queue.paths()[static_cast<std::size_t>(pace.path)].own;
  }
  is_settled_ = is_settled;
  nics_in_use_ = static_cast<net::PathMask>(in_use);
  next_poll_ = SteadyClock::instance().now() + (is_settled ? kPollInterval : kShortPollInterval);
  // Wakes the NICs: there is a probe, or work that moved to another path.
  for (std::size_t at = 0; any && at < parts_.ports.size(); ++at) parts_.ports.at(at).wake();
  return any;
}

}  // namespace oriel::comm

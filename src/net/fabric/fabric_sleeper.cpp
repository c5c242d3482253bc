// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_sleeper.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/system_table.hpp"

namespace oriel::net {
namespace {

using namespace std::chrono_literals;

constexpr int kSleepMostMs = 100;
constexpr Duration kNapLeast = 50us;
constexpr Duration kNapMost = 1ms;
constexpr Duration kNapBesideOthers = 250us;
// Shortest time between two fruitful wake-ups: a thread that finds work stays awake for longer.
constexpr Duration kFruitless = 200us;

}  // namespace

Result<FabricSleeper> FabricSleeper::create(WireFabric& wire) {
  OwnedFd wake_event(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event) return system_error("making an eventfd for a fabric wire's thread");
  return FabricSleeper(wire, std::move(wake_event));
}

void FabricSleeper::nap(Duration most) {
  nap_ = std::clamp(2 * nap_, kNapLeast, most);
  std::this_thread::sleep_for(nap_);
}

void FabricSleeper::sleep(bool others_drive) {
  if (others_drive) return nap(kNapBesideOthers);
  const bool was_fruitless = SteadyClock::instance().now() - woken_ < kFruitless;
  if (was_fruitless || !wire_->may_sleep()) return nap(kNapMost);
  std::array<pollfd, 2> fds{};
  fds[0] = {wire_->wait_descriptor(), POLLIN, 0};
  fds[1] = {wake_event_.get(), POLLIN, 0};
  // Naps on failure, which bounds the sleep as well.
  if (sys().poll(fds.data(), fds.size(), kSleepMostMs) < 0) return nap(kNapMost);
  eventfd_t rings = 0;
  if (fds[1].revents != 0) static_cast<void>(sys().eventfd_read(wake_event_.get(), &rings));
  nap_ = {};
  woken_ = SteadyClock::instance().now();
}

void FabricSleeper::wake() {
  // Fails only if the counter is full, after 2^64 wake-ups.
  static_cast<void>(sys().eventfd_write(wake_event_.get(), 1));
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/soft_port.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/free_descriptors.hpp"
#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {
namespace {

/// Checks an interface that the user has named.
Status check_interface(const std::string& name, const boot::SocketOptions& options) {
  auto found = boot::choose_interface(options);
  if (found.ok()) return {};
  if (found.error().code() != ErrorCode::invalid_usage) return std::move(found).error();
  return Error(ErrorCode::invalid_usage,
               fmt::format("ORIEL_PATHS names {}, which is no network interface that is up, "
                           "connected and has an IP address",
                           name))
      .with_hint("name interfaces that `ip -brief address` lists as UP, separated by commas");
}

}  // namespace

SoftPort::SoftPort() : windows_(nic_) {}

std::uint32_t SoftPort::fabric_buffers(std::size_t peers, std::uint32_t least) {
  constexpr std::size_t kBuffersForPeer = 8;
  constexpr std::size_t kBuffersMost = 4096;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(kBuffersForPeer * peers, least, kBuffersMost));
}

void SoftPort::serve_gpu(net::CopyEngine& engine, std::mutex* shared) {
  if (shared != nullptr) engine_.emplace(engine, *shared);
  nic_.serve_gpu(shared != nullptr ? *engine_ : engine);
}

Status SoftPort::open_fabric(const NetworkOptions& options, const std::string& interface,
                             const std::vector<int>& peers) {
  if (peers.empty()) return {};
  // Checks descriptors in advance: libfabric opens connections at first use, and does not report
  // that it cannot.
  constexpr std::size_t kForEach = 2;
  constexpr std::size_t kForItself = 12;
  ORIEL_CHECK(check_free_descriptors(kForEach * peers.size() + kForItself));
  net::WireFabric::Options wire;
  wire.key = options.session->key(boot::KeyPurpose::wire);
  wire.provider = options.settings->fabric_provider;
  wire.socket.ifname = options.settings->socket_ifname;
  if (!interface.empty()) {
    wire.socket.ifname = "=" + interface;
    ORIEL_CHECK(check_interface(interface, wire.socket));
  }
  wire.receives = fabric_buffers(peers.size(), kFabricReceives);
  wire.sends = fabric_buffers(peers.size(), wire.sends);
  wire.payload_bytes_most = kFabricPieceBytes;
  auto made = net::WireFabric::create(wire);
  if (!made.ok()) {
    return std::move(made).error().with_context(
        fmt::format("making a wire over libfabric{} to rank {}",
                    interface.empty() ? "" : " and " + interface, peers.front()));
  }
  fabric_ = made.value().get();
  fabric_wire_ = nic_.add_wire(std::move(made).value());
  return {};
}

Status SoftPort::make_sleeper() {
  if (fabric_ == nullptr) return {};
  ORIEL_TRY(sleeper_, net::FabricSleeper::create(*fabric_));
  return {};
}

// Starts a thread besides the one that sleeps on the doorbell. A doorbell in memory cannot wake a
// thread that waits for a descriptor, nor the reverse.
Status SoftPort::start_thread(std::function<bool()> progress, std::function<bool()> is_driven,
                              const std::vector<int>& cpus) {
  net::NicThread::Options options;
  options.progress = std::move(progress);
  options.begin = [&cpus] { topo::run_this_thread_on(cpus); };
  options.sleep = [this, is_driven = std::move(is_driven)] { sleeper_->sleep(is_driven()); };
  options.wake = [this] { sleeper_->wake(); };
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  return {};
}

void SoftPort::wake() {
  if (sleeper_.has_value()) sleeper_->wake();
}

}  // namespace oriel::comm

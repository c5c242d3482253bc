// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_connect.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "oriel/device/queue/wqe.hpp"

#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::uint8_t kHopLimit = 255;
constexpr std::uint32_t kLogReadsMost = 7;  // largest value of the field
constexpr std::uint16_t kRoceV2Ports = 0xc000;

std::string of_queue(const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer) {
  return fmt::format("queue {:#x}, to the peer's {:#x}", own.number, peer.number);
}

Error mismatch(const Mlx5Device& device, const std::string& what) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} port {}: {}", device.place().device, device.place().port, what))
      .with_hint("choose ports of one network at both ends");
}

/// Returns a UDP source port that depends on the pair of queues, so that switches spread
/// connections over their links.
std::uint16_t udp_port(const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer) {
  const std::uint32_t mixed = (own.number ^ peer.number) * 0x9e3779b1u;
  return static_cast<std::uint16_t>(kRoceV2Ports | (mixed >> 18));
}

/// Finds the peer's link-layer address, which the kernel resolves.
Status resolve(const Mlx5Device& device, const Mlx5QueueHandle& peer, const std::string& purpose,
               mlx5::PathSettings& path) {
  VerbsPath wanted{};
  std::copy(peer.gid.begin(), peer.gid.end(), wanted.gid);
  wanted.own_gid_index = path.own_gid_index;
  wanted.hop_limit = path.hop_limit;
  wanted.traffic_class = path.traffic_class;
  wanted.service_level = path.service_level;
  wanted.is_global = 1;
  wanted.port = static_cast<std::uint8_t>(device.place().port);
  const VerbsTable& verbs = device.verbs();
  const Mlx5AddressOwner address(verbs, verbs.create_address(device.domain(), &wanted));
  if (!address) return mlx5_error(device.place(), "ibv_create_ah", purpose, errno);
  Mlx5AddressDetails found{};
  Mlx5Details details{};
  details.address.in = address.get();
  details.address.out = &found;
  const int status = detail::errno_of(verbs.init_obj(&details, VerbsConstants::kAddressDetails));
  if (status != 0 || found.vector == nullptr) {
    return mlx5_error(device.place(), "mlx5dv_init_obj", purpose, status != 0 ? status : EPROTO);
  }
  std::copy_n(found.vector->link_address, path.link_address.size(), path.link_address.begin());
  return {};
}

Result<mlx5::PathSettings> path_to(const Mlx5Device& device, const Mlx5QueueHandle& own,
                                   const Mlx5QueueHandle& peer) {
  mlx5::PathSettings path;
  path.ethernet = own.link_layer == LinkLayer::ethernet;
  path.own_gid_index = device.port().gid_index();
  path.hop_limit = kHopLimit;
  path.traffic_class = device.options().traffic_class;
  path.service_level = device.options().service_level;
  path.gid = peer.gid;
  path.lid = peer.lid;
  if (!path.ethernet) {
    // Needs a global route between subnets; the upper half of a GID names the subnet.
    path.global_route = device.port().needs_global_route() ||
                        !std::equal(own.gid.begin(), own.gid.begin() + 8, peer.gid.begin());
    return path;
  }
  if (own.roce_version == 2) path.udp_port = udp_port(own, peer);
  ORIEL_CHECK(resolve(device, peer, of_queue(own, peer), path));
  return path;
}

Status check_peer(const Mlx5Device& device, const Mlx5QueueHandle& own,
                  const Mlx5QueueHandle& peer) {
  if (own.link_layer != peer.link_layer) {
    return mismatch(device,
                    "the peer's port is on InfiniBand and this one on Ethernet, or the "
                    "other way about");
  }
  if (own.roce_version != peer.roce_version) {
    return mismatch(device, fmt::format("the peer's GID is one of RoCE v{}, this port's of v{}",
                                        peer.roce_version, own.roce_version));
  }
  return {};
}

Status make_ready(const Mlx5Device& device, const Mlx5ObjectOwner& queue_pair,
                  const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer,
                  const mlx5::PathSettings& path) {
  const std::string purpose = of_queue(own, peer);
  const mlx5::Capabilities& can = device.capabilities();
  mlx5::ReceiveSettings receive;
  receive.remote_number = peer.number;
  receive.psn = peer.psn;
  receive.mtu = std::min(own.mtu, peer.mtu);
  receive.log_reads_answered = own.log_reads_answered;
  constexpr std::uint32_t kLogEntryMost = 30;
  static_assert(device::queue::kWqeBytesMost == 1u << kLogEntryMost);
  receive.log_message_most = std::min(can.log_message_most, kLogEntryMost);
  receive.path = path;
  ORIEL_CHECK(device.modify(queue_pair, mlx5::init_to_ready_to_receive(own.number, receive),
                            "INIT2RTR_QP", purpose));
  mlx5::SendSettings send;
  send.psn = own.psn;
  send.log_reads_sent =
      std::min({can.log_reads_sent_most, std::uint32_t{peer.log_reads_answered}, kLogReadsMost});
  return device.modify(queue_pair, mlx5::ready_to_receive_to_send(own.number, send), "RTR2RTS_QP",
                       purpose);
}

}  // namespace

Mlx5QueueHandle own_handle(const Mlx5Device& device, std::uint32_t number, std::uint32_t psn) {
  Mlx5QueueHandle handle;
  handle.number = number;
  handle.psn = psn;
  handle.link_layer = device.port().link_layer();
  handle.mtu = device.port().mtu();
  handle.log_reads_answered = static_cast<std::uint8_t>(
      std::min(device.capabilities().log_reads_answered_most, kLogReadsMost));
  handle.roce_version = device.port().roce_version();
  handle.lid = device.port().lid();
  handle.gid = device.port().gid();
  return handle;
}

Status connect_queue(const Mlx5Device& device, const Mlx5ObjectOwner& queue_pair,
                     const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer,
                     const std::function<Status()>& post_receives) {
  ORIEL_CHECK(check_peer(device, own, peer));
  // Resolves the path before any state change: on Ethernet this step fails if the kernel cannot
  // resolve the peer's address.
  ORIEL_TRY(const mlx5::PathSettings path, path_to(device, own, peer));
  const Bytes init =
      mlx5::reset_to_init(own.number, device.place().port, device.options().partition_index);
  ORIEL_CHECK(device.modify(queue_pair, init, "RST2INIT_QP", of_queue(own, peer)));
  ORIEL_CHECK(post_receives());
  return make_ready(device, queue_pair, own, peer, path);
}

}  // namespace oriel::net

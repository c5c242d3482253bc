// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "net/mlx5/mlx5_fields.hpp"

/// Commands to an mlx5 adapter that a queue needs, as bytes, and the parsing of its answers. Pure
/// functions. There are no destroy commands: the kernel keeps the one that undoes each create
/// command, even for a process that dies.
namespace oriel::net::mlx5 {

/// Place of an object's ring: registered memory (a umem), from its first byte on.
struct RingPlace {
  std::uint32_t umem = 0;
  std::uint32_t record_umem = 0;    ///< umem of the doorbell record
  std::uint64_t record_offset = 0;  ///< within record_umem
};

struct CqSettings {
  RingPlace place;
  std::uint32_t log_size = 0;  ///< log2 of the number of elements
  std::uint32_t log_page_size = 0;
  std::uint32_t uar_page = 0;
  std::uint32_t event_queue = 0;
  bool collapsed = true;  ///< element 0 takes every completion; false: elements are filled in turn
};
/// Encodes CREATE_CQ of a completion queue that ignores overrun: nobody reports how far it was
/// read.
Bytes create_cq(const CqSettings& settings);

/// Bytes of a WQE of the receive ring; it has no buffer.
inline constexpr std::size_t kReceiveBytes = 16;
/// Fewest receives: fewer do not fill a WQEBB, behind which the send ring begins.
inline constexpr std::uint32_t kReceivesLeast = 4;
/// Encodes `count` of these WQEs.
Bytes empty_receives(std::uint32_t count);

struct QpSettings {
  RingPlace place;  ///< ring of receives, if there are any, followed by the ring of sends
  std::uint32_t log_size = 0;  ///< log2 of the number of WQEBBs
  std::uint32_t domain = 0;
  std::uint32_t uar_page = 0;
  std::uint32_t cq = 0;
  std::uint32_t receives = 0;    ///< a power of two from kReceivesLeast, or 0
  std::uint32_t receive_cq = 0;  ///< used if there are receives
};
/// Encodes CREATE_QP of a reliable connection. Without receives the queue still answers writes,
/// reads and atomics of the peer, but takes no immediates.
Bytes create_qp(const QpSettings& settings);

/// Encodes RST2INIT_QP. Peers may write, read and execute atomics on memory for which they have
/// keys.
Bytes reset_to_init(std::uint32_t number, std::uint32_t port, std::uint16_t partition_index);

/// Path to the peer: over Ethernet, or over InfiniBand with or without a global route.
struct PathSettings {
  bool ethernet = false;
  bool global_route = false;  ///< InfiniBand only; Ethernet always has a global route
  std::uint16_t lid = 0;
  std::uint8_t own_gid_index = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint16_t udp_port = 0;  ///< 0: RoCE v1
  std::array<std::uint8_t, 16> gid{};
  std::array<std::uint8_t, 6> link_address{};
};
struct ReceiveSettings {
  std::uint32_t remote_number = 0;
  std::uint32_t psn = 0;  ///< PSN of the peer's first packet
  std::uint32_t mtu = 0;  ///< see VerbsPort::mtu
  std::uint32_t log_reads_answered = 0;
  std::uint32_t log_message_most = 30;
  PathSettings path;
};
Bytes init_to_ready_to_receive(std::uint32_t number, const ReceiveSettings& settings);

struct SendSettings {
  std::uint32_t psn = 0;
  std::uint32_t log_reads_sent = 0;
  std::uint32_t ack_timeout = 20;  ///< 4.096 us times 2 to this power
  std::uint32_t retries = 7;
  std::uint32_t not_ready_retries = 7;  ///< 7: unlimited
};
Bytes ready_to_receive_to_send(std::uint32_t number, const SendSettings& settings);

Bytes to_error(std::uint32_t number);
Bytes query_capabilities(std::uint16_t modifier);

/// Adapter's result of a command; both fields are 0 after success.
struct Answer {
  std::uint8_t status = 0;
  std::uint32_t syndrome = 0;
  bool good() const { return status == 0; }
};
/// Parses the status of an answer of at least CommandOut::kBytes bytes.
Answer answer_of(ByteView out);

/// Returns the number of the created object. Refuses 0, which is no object's number.
Result<std::uint32_t> created_number(ByteView out);

struct Capabilities {
  std::uint32_t log_qp_size_most = 0;
  std::uint32_t log_cq_size_most = 0;
  std::uint32_t log_message_most = 0;
  std::uint32_t log_reads_sent_most = 0;
  std::uint32_t log_reads_answered_most = 0;
  std::uint32_t completion_version = 0;
  bool reliable_connection = false;
  bool cq_ignores_overrun = false;
  bool atomic = false;
  std::uint32_t atomic_endianness = 0;
  std::uint32_t atomic_operations = 0;
  std::uint32_t atomic_sizes = 0;
};
Capabilities general_capabilities(ByteView out);
void add_atomic_capabilities(Capabilities& capabilities, ByteView out);

}  // namespace oriel::net::mlx5

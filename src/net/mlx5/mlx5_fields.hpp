// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Fields of an mlx5 adapter's commands and answers. Offset and width are in bits, from the
/// beginning of the structure. The most significant bit comes first, in bytes and in fields alike,
/// so that a command is one string of bits.
///
/// Source: mlx5_ifc.h of Linux and of rdma-core, the interface's public headers, transcribed by
/// hand. They agree with each other on everything here.
namespace oriel::net::mlx5 {

struct Field {
  std::uint32_t offset;
  std::uint32_t width;  ///< at most 64
};

/// Returns the field of a structure that lies at `base` in another structure.
constexpr Field operator+(std::uint32_t base, Field field) {
  return {base + field.offset, field.width};
}

/// Stores the low bits of `value` for which the field has room. The field lies inside `bytes`.
constexpr void put(std::span<std::byte> bytes, Field field, std::uint64_t value) {
  for (std::uint32_t i = 0; i < field.width; ++i) {
    const std::uint32_t at = field.offset + field.width - 1 - i;
    const auto bit = static_cast<std::byte>(0x80u >> (at % 8));
    std::byte& byte = bytes[at / 8];
    byte = (value >> i & 1) != 0 ? byte | bit : byte & ~bit;
  }
}

constexpr std::uint64_t get(std::span<const std::byte> bytes, Field field) {
  std::uint64_t value = 0;
  for (std::uint32_t at = field.offset; at < field.offset + field.width; ++at) {
    const auto byte = std::to_integer<std::uint32_t>(bytes[at / 8]);
    value = value << 1 | (byte >> (7 - at % 8) & 1);
  }
  return value;
}

/// Opcodes of the commands.
enum class Opcode : std::uint16_t {
  query_hca_cap = 0x100,
  create_cq = 0x400,
  create_qp = 0x500,
  reset_to_init = 0x502,
  init_to_ready_to_receive = 0x503,
  ready_to_receive_to_send = 0x504,
  to_error = 0x507,
};

/// Beginning of all commands. In most of them `number` is the number of their object.
struct CommandIn {
  static constexpr Field opcode{0x00, 16};
  static constexpr Field modifier{0x30, 16};
  static constexpr Field number{0x48, 24};
  static constexpr std::size_t kBytes = 16;
};

/// Beginning of all answers. `number` is the number of the created object.
struct CommandOut {
  static constexpr Field status{0x00, 8};
  static constexpr Field syndrome{0x20, 32};
  static constexpr Field number{0x48, 24};
  static constexpr std::size_t kBytes = 16;
};

struct CreateCq {
  static constexpr std::uint32_t context = 0x80;  ///< CqContext
  static constexpr Field umem_id{0x2c0, 32};
  static constexpr Field umem_valid{0x2e0, 1};
  static constexpr std::size_t kBytes = 0x880 / 8;
};

struct CqContext {
  static constexpr Field record_umem_valid{0x06, 1};
  static constexpr Field collapsed{0x0b, 1};
  static constexpr Field ignore_overrun{0x0e, 1};
  static constexpr Field record_umem_id{0x20, 32};
  static constexpr Field log_size{0x63, 5};
  static constexpr Field uar_page{0x68, 24};
  static constexpr Field event_queue{0xb8, 8};
  static constexpr Field log_page_size{0xc3, 5};  ///< log2 of the page size in units of 4 KiB
  static constexpr Field record_address{0x1c0, 64};
};

/// CREATE_QP. With the queue's number also the commands of the three steps to ready-to-send.
struct QpCommand {
  static constexpr std::uint32_t context = 0xc0;  ///< QpContext
  static constexpr Field umem_id{0x840, 32};      // this and the next field: CREATE_QP only
  static constexpr Field umem_valid{0x860, 1};
  static constexpr std::size_t kBytes = 0x880 / 8;
};

struct QpContext {
  static constexpr Field path_migration{0x13, 2};
  static constexpr Field domain{0x28, 24};
  static constexpr Field mtu{0x40, 3};
  static constexpr Field log_message_most{0x43, 5};
  static constexpr Field log_receive_size{0x49, 4};
  static constexpr Field log_receive_stride{0x4d, 3};  ///< log2 of the stride in units of 16 bytes
  static constexpr Field log_send_size{0x51, 4};
  static constexpr Field uar_page{0x68, 24};
  static constexpr Field remote_number{0xa8, 24};
  static constexpr std::uint32_t path = 0xc0;  ///< AddressPath
  static constexpr Field log_reads_sent_most{0x388, 3};
  static constexpr Field retry_count{0x38d, 3};
  static constexpr Field not_ready_retries{0x390, 3};
  static constexpr Field next_send_psn{0x3c8, 24};
  static constexpr Field send_cq{0x3e8, 24};
  static constexpr Field log_reads_answered_most{0x488, 3};
  static constexpr Field atomic_mode{0x48c, 4};  ///< 3: up to 8 bytes
  static constexpr Field remote_read{0x490, 1};
  static constexpr Field remote_write{0x491, 1};
  static constexpr Field remote_atomic{0x492, 1};
  static constexpr Field not_ready_timer{0x4a3, 5};
  static constexpr Field next_receive_psn{0x4a8, 24};
  static constexpr Field receive_cq{0x4e8, 24};
  static constexpr Field record_address{0x500, 64};
  static constexpr Field receive_type{0x565, 3};  ///< 0: a ring of its own, 3: none
  static constexpr Field record_umem_valid{0x683, 1};
  static constexpr Field record_umem_id{0x720, 32};
};

/// Path to the peer, in a queue's context.
struct AddressPath {
  static constexpr Field partition_index{0x10, 16};
  static constexpr Field global_route{0x28, 1};
  static constexpr Field lid{0x30, 16};
  static constexpr Field ack_timeout{0x40, 5};
  static constexpr Field own_gid_index{0x48, 8};
  static constexpr Field hop_limit{0x58, 8};
  static constexpr Field traffic_class{0x64, 8};
  static constexpr std::uint32_t gid = 0x80;  ///< 16 bytes
  static constexpr Field dscp{0x10a, 6};
  static constexpr Field udp_port{0x110, 16};
  static constexpr Field ethernet_priority{0x121, 3};
  static constexpr Field service_level{0x124, 4};
  static constexpr Field port{0x128, 8};
  static constexpr std::uint32_t link_address = 0x130;  ///< 6 bytes
};

/// QUERY_HCA_CAP. The modifier selects a set of capabilities, and their current values.
struct QueryCapabilities {
  static constexpr std::uint16_t kGeneral = 0x0 << 1 | 1;
  static constexpr std::uint16_t kAtomic = 0x3 << 1 | 1;
  static constexpr std::uint32_t capabilities = 0x80;
  static constexpr std::size_t kOutBytes = (0x80 + 0x8000) / 8;
};

struct GeneralCapabilities {
  static constexpr Field log_qp_size_most{0x88, 8};
  static constexpr Field log_cq_size_most{0xc8, 8};
  static constexpr Field log_reads_sent_most{0x14a, 6};
  static constexpr Field log_reads_answered_most{0x15a, 6};
  static constexpr Field log_message_most{0x1c3, 5};
  static constexpr Field completion_version{0x1fc, 4};
  static constexpr Field atomic{0x21e, 1};
  static constexpr Field cq_ignores_overrun{0x220, 1};
  static constexpr Field reliable_connection{0x23f, 1};
};

struct AtomicCapabilities {
  static constexpr Field endianness_mode{0x40, 2};  ///< 1: 8-byte operands in the host's byte order
  static constexpr Field operations{0x90, 16};      ///< 1: CAS, 2: fetch-and-add, 4 and 8: masked
  static constexpr Field sizes{0xb0, 16};           ///< sum of the supported sizes in bytes
};

}  // namespace oriel::net::mlx5

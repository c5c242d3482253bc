// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_commands.hpp"

#include <algorithm>
#include <bit>

namespace oriel::net::mlx5 {
namespace {

constexpr std::uint32_t kPathMigrated = 3;  // required when there is no alternate path
constexpr std::uint32_t kRingOfReceives = 0;
constexpr std::uint32_t kNoReceives = 3;
constexpr Field kReceiveKey{0x20, 32};            // in the first list element of a WQE
constexpr std::uint32_t kEndOfList = 0x00000100;  // in place of a key
constexpr std::uint32_t kAtomicsUpTo8 = 3;
constexpr std::uint32_t kNotReadyTimer = 12;  // 640 us

Bytes make(Opcode opcode, std::size_t bytes, std::uint32_t number = 0) {
  Bytes command(bytes);
  put(command, CommandIn::opcode, static_cast<std::uint64_t>(opcode));
  put(command, CommandIn::number, number);
  return command;
}

void put_bytes(Bytes& command, std::uint32_t offset_bits, std::span<const std::uint8_t> from) {
  std::transform(from.begin(), from.end(), command.begin() + offset_bits / 8,
                 [](std::uint8_t byte) { return std::byte{byte}; });
}

void put_path(Bytes& command, const PathSettings& path) {
  constexpr std::uint32_t base = QpCommand::context + QpContext::path;
  if (path.ethernet) {
    put_bytes(command, base + AddressPath::link_address, path.link_address);
    put(command, base + AddressPath::dscp, path.traffic_class >> 2);
    put(command, base + AddressPath::ethernet_priority, path.service_level);
    put(command, base + AddressPath::udp_port, path.udp_port);
  } else {
    put(command, base + AddressPath::lid, path.lid);
    put(command, base + AddressPath::service_level, path.service_level);
    put(command, base + AddressPath::global_route, path.global_route ? 1 : 0);
  }
  if (!path.ethernet && !path.global_route) return;
  put_bytes(command, base + AddressPath::gid, path.gid);
  put(command, base + AddressPath::own_gid_index, path.own_gid_index);
  put(command, base + AddressPath::hop_limit, path.hop_limit);
  if (!path.ethernet) put(command, base + AddressPath::traffic_class, path.traffic_class);
}

}  // namespace

Bytes create_cq(const CqSettings& settings) {
  Bytes command = make(Opcode::create_cq, CreateCq::kBytes);
  put(command, CreateCq::umem_id, settings.place.umem);
  put(command, CreateCq::umem_valid, 1);
  constexpr std::uint32_t base = CreateCq::context;
  put(command, base + CqContext::collapsed, settings.collapsed ? 1 : 0);
  put(command, base + CqContext::ignore_overrun, 1);
  put(command, base + CqContext::log_size, settings.log_size);
  put(command, base + CqContext::log_page_size, settings.log_page_size);
  put(command, base + CqContext::uar_page, settings.uar_page);
  put(command, base + CqContext::event_queue, settings.event_queue);
  put(command, base + CqContext::record_umem_valid, 1);
  put(command, base + CqContext::record_umem_id, settings.place.record_umem);
  put(command, base + CqContext::record_address, settings.place.record_offset);
  return command;
}

Bytes empty_receives(std::uint32_t count) {
  Bytes entries(count * kReceiveBytes);
  for (std::uint32_t i = 0; i < count; ++i) {
    put(std::span(entries).subspan(i * kReceiveBytes, kReceiveBytes), kReceiveKey, kEndOfList);
  }
  return entries;
}

Bytes create_qp(const QpSettings& settings) {
  Bytes command = make(Opcode::create_qp, QpCommand::kBytes);
  put(command, QpCommand::umem_id, settings.place.umem);
  put(command, QpCommand::umem_valid, 1);
  constexpr std::uint32_t base = QpCommand::context;
  put(command, base + QpContext::path_migration, kPathMigrated);
  put(command, base + QpContext::domain, settings.domain);
  put(command, base + QpContext::log_send_size, settings.log_size);
  const bool receives = settings.receives != 0;
  put(command, base + QpContext::receive_type, receives ? kRingOfReceives : kNoReceives);
  if (receives) {
    const int log_receives = std::countr_zero(settings.receives);
    put(command, base + QpContext::log_receive_size, static_cast<std::uint64_t>(log_receives));
    put(command, base + QpContext::log_receive_stride, 0);
  }
  put(command, base + QpContext::uar_page, settings.uar_page);
  put(command, base + QpContext::send_cq, settings.cq);
  put(command, base + QpContext::receive_cq, receives ? settings.receive_cq : settings.cq);
  put(command, base + QpContext::record_umem_valid, 1);
  put(command, base + QpContext::record_umem_id, settings.place.record_umem);
  put(command, base + QpContext::record_address, settings.place.record_offset);
  return command;
}

Bytes reset_to_init(std::uint32_t number, std::uint32_t port, std::uint16_t partition_index) {
  Bytes command = make(Opcode::reset_to_init, QpCommand::kBytes, number);
  constexpr std::uint32_t base = QpCommand::context;
  put(command, base + QpContext::path_migration, kPathMigrated);
  put(command, base + QpContext::remote_write, 1);
  put(command, base + QpContext::remote_read, 1);
  put(command, base + QpContext::remote_atomic, 1);
  put(command, base + QpContext::atomic_mode, kAtomicsUpTo8);
  put(command, base + QpContext::path + AddressPath::port, port);
  put(command, base + QpContext::path + AddressPath::partition_index, partition_index);
  return command;
}

Bytes init_to_ready_to_receive(std::uint32_t number, const ReceiveSettings& settings) {
  Bytes command = make(Opcode::init_to_ready_to_receive, QpCommand::kBytes, number);
  constexpr std::uint32_t base = QpCommand::context;
  put(command, base + QpContext::mtu, settings.mtu);
  put(command, base + QpContext::log_message_most, settings.log_message_most);
  put(command, base + QpContext::remote_number, settings.remote_number);
  put(command, base + QpContext::next_receive_psn, settings.psn);
  put(command, base + QpContext::not_ready_timer, kNotReadyTimer);
  put(command, base + QpContext::log_reads_answered_most, settings.log_reads_answered);
  put_path(command, settings.path);
  return command;
}

Bytes ready_to_receive_to_send(std::uint32_t number, const SendSettings& settings) {
  Bytes command = make(Opcode::ready_to_receive_to_send, QpCommand::kBytes, number);
  constexpr std::uint32_t base = QpCommand::context;
  put(command, base + QpContext::next_send_psn, settings.psn);
  put(command, base + QpContext::log_reads_sent_most, settings.log_reads_sent);
  put(command, base + QpContext::retry_count, settings.retries);
  put(command, base + QpContext::not_ready_retries, settings.not_ready_retries);
  put(command, base + QpContext::path + AddressPath::ack_timeout, settings.ack_timeout);
  return command;
}

Bytes to_error(std::uint32_t number) {
  return make(Opcode::to_error, CommandIn::kBytes, number);
}

Bytes query_capabilities(std::uint16_t modifier) {
  Bytes command = make(Opcode::query_hca_cap, CommandIn::kBytes);
  put(command, CommandIn::modifier, modifier);
  return command;
}

Answer answer_of(ByteView out) {
  return {static_cast<std::uint8_t>(get(out, CommandOut::status)),
          static_cast<std::uint32_t>(get(out, CommandOut::syndrome))};
}

Result<std::uint32_t> created_number(ByteView out) {
  const auto number = static_cast<std::uint32_t>(get(out, CommandOut::number));
  if (number != 0) return number;
  return Error(ErrorCode::system, "the adapter answered with the number 0, which is no object's");
}

Capabilities general_capabilities(ByteView out) {
  const auto read = [&](Field field) {
    return static_cast<std::uint32_t>(get(out, QueryCapabilities::capabilities + field));
  };
  Capabilities found;
  found.log_qp_size_most = read(GeneralCapabilities::log_qp_size_most);
  found.log_cq_size_most = read(GeneralCapabilities::log_cq_size_most);
  found.log_message_most = read(GeneralCapabilities::log_message_most);
  found.log_reads_sent_most = read(GeneralCapabilities::log_reads_sent_most);
  found.log_reads_answered_most = read(GeneralCapabilities::log_reads_answered_most);
  found.completion_version = read(GeneralCapabilities::completion_version);
  found.reliable_connection = read(GeneralCapabilities::reliable_connection) != 0;
  found.cq_ignores_overrun = read(GeneralCapabilities::cq_ignores_overrun) != 0;
  found.atomic = read(GeneralCapabilities::atomic) != 0;
  return found;
}

void add_atomic_capabilities(Capabilities& capabilities, ByteView out) {
  const auto read = [&](Field field) {
    return static_cast<std::uint32_t>(get(out, QueryCapabilities::capabilities + field));
  };
  capabilities.atomic_endianness = read(AtomicCapabilities::endianness_mode);
  capabilities.atomic_operations = read(AtomicCapabilities::operations);
  capabilities.atomic_sizes = read(AtomicCapabilities::sizes);
}

}  // namespace oriel::net::mlx5

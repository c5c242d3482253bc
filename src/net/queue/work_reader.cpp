// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/work_reader.hpp"

#include <cstring>

#include "base/alignment.hpp"
#include "net/queue/byte_order.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kWqebbBytes = 64;
constexpr std::uint32_t kPart = 16;
// Offsets of segments in a WQE: control, then the remote address, then those of the operation.
constexpr std::uint32_t kRemoteAt = 16;
constexpr std::uint32_t kThirdAt = 32;
constexpr std::uint32_t kFourthAt = 48;
constexpr std::uint32_t kFifthAt = 64;
constexpr std::uint64_t kMessageMost = std::uint64_t{1} << 30;

Syndrome syndrome_of(Complaint complaint) {
  if (complaint == Complaint::none) return Syndrome::none;
  if (complaint == Complaint::data_length) return Syndrome::local_length;
  return Syndrome::local_operation;
}

}  // namespace

void WorkReader::copy_wqebb(std::uint64_t index, std::uint32_t to) {
  std::memcpy(copy_.data() + to * kWqebbBytes, ring_ + (index & (depth_ - 1)) * kWqebbBytes,
              kWqebbBytes);
}

WorkReader::Control WorkReader::control() const {
  const std::byte* at = copy_.data();
  const std::uint32_t first = load_big32(at);
  const std::uint32_t second = load_big32(at + 4);
  const std::uint32_t third = load_big32(at + 8);
  Control control;
  control.modifier = static_cast<std::uint8_t>(first >> 24);
  control.index = static_cast<std::uint16_t>(first >> 8);
  control.opcode = static_cast<std::uint8_t>(first);
  control.queue = second >> 8;
  control.parts = second & 0x3f;
  control.flags = static_cast<std::uint8_t>(third);
  control.immediate = load_big32(at + 12);
  // Reserved: two bits beside the size, the signature, the stream.
  control.has_strange_bits = (second & 0xc0) != 0 || (third >> 8) != 0;
  return control;
}

Complaint WorkReader::check_place(const Control& control, std::uint64_t index) const {
  if (control.index != static_cast<std::uint16_t>(index)) return Complaint::wrong_index;
  if (control.queue != queue_) return Complaint::wrong_queue;
  if (control.parts == 0) return Complaint::wrong_size;
  return Complaint::none;
}

WorkReader::Wqe WorkReader::read(std::uint64_t index, std::uint64_t rung) {
  Wqe wqe;
  wqe.work.index = index;
  copy_wqebb(index, 0);
  const Control head = control();
  wqe.work.opcode = head.opcode;
  wqe.complaint = check_place(head, index);
  if (wqe.complaint == Complaint::none) {
    const std::uint32_t wqebbs = divide_up(head.parts * kPart, kWqebbBytes);
    if (wqebbs > rung - index || wqebbs > depth_) {
      wqe.complaint = Complaint::not_rung;
    } else {
      wqe.work.wqebbs = wqebbs;
      for (std::uint32_t i = 1; i < wqebbs; ++i) copy_wqebb(index + i, i);
      wqe.complaint = read_flags(head, wqe.work);
      if (wqe.complaint == Complaint::none) wqe.complaint = read_body(head, wqe.work);
    }
  }
  wqe.syndrome = syndrome_of(wqe.complaint);
  return wqe;
}

Complaint WorkReader::read_flags(const Control& control, WorkRequest& work) {
  if (control.has_strange_bits) return Complaint::reserved_bits;
  if ((control.flags & 0x11) != 0) return Complaint::wrong_flags;
  switch (control.flags >> 5) {
    case 0:
    case 1:  // waits only for local invalidations, which do not exist here
      work.fence = FenceMode::none;
      break;
    case 2:
    case 4:
      work.fence = FenceMode::reads_and_atomics;
      break;
    case 3:
      work.fence = FenceMode::everything;
      break;
    default:
      return Complaint::wrong_flags;
  }
  work.signalled = ((control.flags >> 2) & 3) >= 2;
  return Complaint::none;
}

Complaint WorkReader::read_body(const Control& control, WorkRequest& work) const {
  const bool has_immediate = control.opcode == 0x09;
  if (!has_immediate && control.immediate != 0) return Complaint::reserved_bits;
  const bool masked = control.opcode == 0x14 || control.opcode == 0x15;
  const bool modified = control.modifier == 0x08 || control.modifier == 0x09;
  if (masked ? !modified : control.modifier != 0) return Complaint::wrong_modifier;
  switch (control.opcode) {
    case 0x00:  // NOP: bytes behind the control segment are ignored
      work.kind = WorkKind::nop;
      return control.parts <= 2 ? Complaint::none : Complaint::wrong_size;
    case 0x08:
    case 0x09:
      work.kind = WorkKind::write;
      work.has_immediate = has_immediate;
      work.immediate = control.immediate;
      return read_transfer(control, work);
    case 0x10:
      work.kind = WorkKind::read;
      return read_transfer(control, work);
    case 0x11:
    case 0x12:
      work.kind = WorkKind::atomic;
      return read_plain_atomic(control, work);
    case 0x14:
    case 0x15:
      work.kind = WorkKind::atomic;
      return read_masked_atomic(control, work);
    case 0x23:
      work.kind = WorkKind::dump;
      if (control.parts != 2) return Complaint::wrong_size;
      read_local(kRemoteAt, work);
      return work.bytes > kMessageMost ? Complaint::data_length : Complaint::none;
    default:
      return Complaint::wrong_opcode;
  }
}

Complaint WorkReader::read_remote(WorkRequest& work) const {
  const std::byte* at = copy_.data() + kRemoteAt;
  work.remote_address = load_big64(at);
  work.rkey = load_big32(at + 8);
  return load_big32(at + 12) == 0 ? Complaint::none : Complaint::reserved_bits;
}

void WorkReader::read_local(std::uint32_t at, WorkRequest& work) const {
  const std::byte* data = copy_.data() + at;
  const std::uint32_t count = load_big32(data);
  // A count of 0 means 2 GiB in the format.
  work.bytes = count == 0 ? std::uint64_t{1} << 31 : count;
  work.lkey = load_big32(data + 4);
  work.local_address = load_big64(data + 8);
}

Complaint WorkReader::read_transfer(const Control& control, WorkRequest& work) const {
  if (control.parts < 2) return Complaint::wrong_size;
  const Complaint remote = read_remote(work);
  if (remote != Complaint::none) return remote;
  if (control.parts == 2) return Complaint::none;  // a transfer of zero bytes
  const bool is_inline = (load_big32(copy_.data() + kThirdAt) >> 31) != 0;
  if (is_inline && work.kind == WorkKind::write) return read_inline(control, work);
  // The format has lists of buffers, but no producer here makes them.
  if (control.parts != 3) return Complaint::wrong_size;
  read_local(kThirdAt, work);
  return work.bytes > kMessageMost ? Complaint::data_length : Complaint::none;
}

Complaint WorkReader::read_inline(const Control& control, WorkRequest& work) const {
  const std::uint32_t count = load_big32(copy_.data() + kThirdAt) & 0x7fffffff;
  if (count > kMostParts * kPart) return Complaint::inline_length;
  const std::uint32_t parts = 2 + divide_up(4 + count, kPart);
  if (parts != control.parts) return Complaint::inline_length;
  const std::byte* first = copy_.data() + kThirdAt + 4;
  work.is_inline = true;
  work.inline_bytes.assign(first, first + count);
  work.bytes = count;
  return Complaint::none;
}

Complaint WorkReader::read_plain_atomic(const Control& control, WorkRequest& work) const {
  if (control.parts != 4) return Complaint::wrong_size;
  const Complaint remote = read_remote(work);
  if (remote != Complaint::none) return remote;
  const std::byte* at = copy_.data() + kThirdAt;
  AtomicWork& atomic = work.atomic;
  atomic.bytes = 8;
  atomic.operand = load_big64(at);
  if (control.opcode == 0x11) {
    atomic.form = AtomicWork::Form::swap;
    atomic.compare = load_big64(at + 8);
    atomic.swap_mask = atomic.compare_mask = ~std::uint64_t{0};
  } else {
    atomic.form = AtomicWork::Form::add;
    if (load_big64(at + 8) != 0) return Complaint::reserved_bits;
  }
  read_local(kFourthAt, work);
  return work.bytes == atomic.bytes ? Complaint::none : Complaint::data_length;
}

Complaint WorkReader::read_masked_atomic(const Control& control, WorkRequest& work) const {
  const bool wide = control.modifier == 0x09;
  const bool swap = control.opcode == 0x14;
  const bool long_form = wide && swap;
  if (control.parts != (long_form ? 5 : 4)) return Complaint::wrong_size;
  const Complaint remote = read_remote(work);
  if (remote != Complaint::none) return remote;
  const std::byte* at = copy_.data() + kThirdAt;
  AtomicWork& atomic = work.atomic;
  atomic.bytes = wide ? 8 : 4;
  atomic.form = swap ? AtomicWork::Form::swap : AtomicWork::Form::add;
  atomic.operand = wide ? load_big64(at) : load_big32(at);
  const std::uint64_t second = wide ? load_big64(at + 8) : load_big32(at + 4);
  if (!swap) {
    atomic.boundary = second;
    if (!wide && load_big64(at + 8) != 0) return Complaint::reserved_bits;
  } else {
    atomic.compare = second;
    atomic.swap_mask = wide ? load_big64(at + 16) : load_big32(at + 8);
    atomic.compare_mask = wide ? load_big64(at + 24) : load_big32(at + 12);
  }
  read_local(long_form ? kFifthAt : kFourthAt, work);
  return work.bytes == atomic.bytes ? Complaint::none : Complaint::data_length;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

/// Messages between a rank's process and the process that copies for its software NIC. Requests and
/// answers alternate on a unix socket. Copy commands go through a ring in shared memory. Each side
/// checks everything that the other one sends. Nothing here does I/O.
namespace oriel::net {

using GpuUuid = std::array<std::byte, 16>;
using FabricBytes = std::array<std::byte, 64>;
/// Processor n is bit n % 64 of word n / 64.
using CpuMask = std::array<std::uint64_t, 16>;

namespace nic_request {

/// The first request; carries the eventfd that wakes the process.
struct Hello {
  GpuUuid gpu{};
  CpuMask cpus{};  ///< processors to run on; none: those that the process has
};
/// Opens a stream of copies; carries its memory, a sealed memfd of channel_bytes().
struct Open {
  std::uint32_t channel = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
};
/// Closes a stream after its copies have ended.
struct Close {
  std::uint32_t channel = 0;
};
/// Adds a GPU allocation, by a descriptor that comes with the request or by a fabric handle.
struct Add {
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
  bool by_fabric = false;
  FabricBytes fabric{};
};
struct Remove {
  std::uint32_t region = 0;
};

}  // namespace nic_request

using NicRequest = std::variant<nic_request::Hello, nic_request::Open, nic_request::Close,
                                nic_request::Add, nic_request::Remove>;

struct NicAnswer {
  bool failed = false;
  NativeStatus native;
  std::string text;  ///< reason of the failure
};

inline constexpr std::size_t kNicMessageBytesMost = 4096;
inline constexpr std::uint32_t kNicSlotsMost = 4096;
inline constexpr std::uint32_t kNicSlotBytesMost = 4u << 20;

Bytes encode(const NicRequest& request);
Bytes encode(const NicAnswer& answer);
/// Decode a message; errors say what is wrong with it.
Result<NicRequest> decode_nic_request(ByteView message);
Result<NicAnswer> decode_nic_answer(ByteView message);
/// Returns how many descriptors a request carries.
std::size_t descriptors_of(const NicRequest& request);

/// A command of a stream, as it lies in the ring. Offsets of regions count from the start of the
/// allocation. `staging` counts from the first slot.
struct NicCommand {
  enum Kind : std::uint32_t {
    load = 1,    ///< from the region to the slots
    store = 2,   ///< from the slots to the region
    rows = 3,    ///< two rows of `bytes`, `stride` apart in the slots, to contiguous memory
    copy = 4,    ///< from region `from` to the region
    write = 5,   ///< `value` as a word of `bytes`
    signal = 6,  ///< `value` to the channel's count
  };
  std::uint32_t kind = 0;
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  std::uint32_t from = 0;
  std::uint32_t stride = 0;
  std::uint64_t from_offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
  std::uint64_t staging = 0;
  std::uint64_t unused = 0;
};
static_assert(sizeof(NicCommand) == 64);

/// An allocation as mapped by the process.
struct NicRegion {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool is_local = false;  ///< in memory of the process's own GPU
};

/// A checked command: its ranges are inside their memory.
struct NicStep {
  NicCommand::Kind kind = NicCommand::signal;
  std::uint64_t at = 0;    ///< address in a region
  std::uint64_t from = 0;  ///< source address of a copy
  std::uint64_t staging = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stride = 0;
  std::uint64_t value = 0;
  bool within_gpu = false;  ///< a copy whose source and target are on the process's own GPU
};

/// Checks a command; `find` returns the region of a number, or null.
template <class Find>
Result<NicStep> check_command(const NicCommand& command, std::uint64_t staging_bytes,
                              const Find& find);

namespace detail {
Status check_command_range(const char* what, std::uint64_t offset, std::uint64_t bytes,
                           std::uint64_t limit);
Error bad_command(const NicCommand& command, const char* why);
Status check_command_form(const NicCommand& command, std::uint64_t staging_bytes);
}  // namespace detail

template <class Find>
Result<NicStep> check_command(const NicCommand& command, std::uint64_t staging_bytes,
                              const Find& find) {
  if (Status form = detail::check_command_form(command, staging_bytes); !form.ok()) {
    return std::move(form).error();
  }
  NicStep step;
  step.kind = static_cast<NicCommand::Kind>(command.kind);
  step.staging = command.staging;
  step.bytes = command.bytes;
  step.stride = command.stride;
  step.value = command.value;
  if (step.kind == NicCommand::signal) return step;
  const NicRegion* const region = find(command.region);
  if (region == nullptr) return detail::bad_command(command, "there is no such region");
  const std::uint64_t span = step.kind == NicCommand::rows ? 2 * command.bytes : command.bytes;
  Status inside = detail::check_command_range("a region", command.offset, span, region->bytes);
  if (!inside.ok()) return std::move(inside).error();
  step.at = region->address + command.offset;
  if (step.kind == NicCommand::write && step.at % step.bytes != 0) {
    return detail::bad_command(command, "the word is not aligned");
  }
  if (step.kind != NicCommand::copy) return step;
  const NicRegion* const from = find(command.from);
  if (from == nullptr) return detail::bad_command(command, "there is no such source");
  inside = detail::check_command_range("a source", command.from_offset, span, from->bytes);
  if (!inside.ok()) return std::move(inside).error();
  step.from = from->address + command.from_offset;
  step.within_gpu = region->is_local && from->is_local;
  return step;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/shared_memory.hpp"
#include "base/try.hpp"
#include "net/process/nic_process.hpp"
#include "net/process/nic_process_ring.hpp"

namespace oriel::net {
namespace {

// Upper bound of the commands for eight steps.
constexpr std::uint64_t kCommandsNeeded = 16;
// The driver copies fewer bytes on the engine that runs kernels. Another process's kernels occupy
// that engine until their time slice ends. Two rows go by the copy engine, however short they are.
constexpr std::size_t kRowsBelow = std::size_t{32} << 10;

}  // namespace

/// A stream of the copying process. Steps are written into a ring that the process reads, and take
/// effect in the same order.
class NicProcessStream final : public CopyStream {
 public:
  NicProcessStream(std::shared_ptr<NicProcess> process, std::uint32_t channel, SharedMapping memory,
                   std::uint32_t slot_bytes)
      : process_(std::move(process)),
        channel_(channel),
        mapping_(std::move(memory)),
        memory_(mapping_.data()) {
    slots_ = memory_.slots();
    slot_bytes_ = slot_bytes;
  }
  ~NicProcessStream() override { close(); }
  NicProcessStream(const NicProcessStream&) = delete;
  NicProcessStream& operator=(const NicProcessStream&) = delete;

  bool has_capacity() override {
    const std::uint64_t in_use = produced_ - memory_.consumed().load(std::memory_order_acquire);
    return in_use <= kNicCommands - kCommandsNeeded;  // poll() reports an invalid counter
  }
  std::size_t reach(const std::byte* at, std::size_t count) override {
    return std::min(count, process_->find(at).left);
  }
  Status load(std::uint32_t number, const std::byte* from, std::size_t count) override {
    NicCommand command = at_region(NicCommand::load, from, count);
    command.staging = offset_of(number);
    return push(command);
  }
  Status store(std::byte* to, std::uint32_t number, ByteView from) override;
  Status copy(std::byte* to, const std::byte* from, std::size_t count) override {
    NicCommand command = at_region(NicCommand::copy, to, count);
    const NicProcess::Place source = process_->find(from);
    command.from = source.region;
    command.from_offset = source.offset;
    return push(command);
  }
  Status write(std::byte* to, std::uint64_t value, std::size_t bytes) override {
    NicCommand command = at_region(NicCommand::write, to, bytes);
    command.value = value;
    return push(command);
  }
  Status signal(std::uint64_t count) override {
    NicCommand command;
    command.kind = NicCommand::signal;
    command.value = count;
    return push(command);
  }
  std::uint64_t signalled() const override {
    return memory_.count().load(std::memory_order_acquire);
  }
  Status poll() override;
  bool settle() noexcept override {
    close();
    return true;
  }

 private:
  std::uint64_t offset_of(std::uint32_t number) const {
    return std::uint64_t{number} * slot_bytes_;
  }
  NicCommand at_region(NicCommand::Kind kind, const std::byte* at, std::size_t count) const {
    const NicProcess::Place place = process_->find(at);
    NicCommand command;
    command.kind = kind;
    command.region = place.region;
    command.offset = place.offset;
    command.bytes = count;
    return command;
  }
  Status push(const NicCommand& command);
  void close() noexcept;

  const std::shared_ptr<NicProcess> process_;
  const std::uint32_t channel_;
  SharedMapping mapping_;
  const NicChannelMemory memory_;
  std::uint64_t produced_ = 0;
  bool closed_ = false;
};

Status NicProcessStream::push(const NicCommand& command) {
  if (closed_) return Error(ErrorCode::internal, "a step for a stream that has ended");
  memory_.command(produced_) = command;
  memory_.produced().store(++produced_, std::memory_order_release);
  fence_with_peer(memory_.asleep());
  if (memory_.asleep().load(std::memory_order_relaxed) != 0) process_->wake();
  return {};
}

Status NicProcessStream::store(std::byte* to, std::uint32_t number, ByteView from) {
  const std::size_t stride = slot_bytes_ / 2;
  const std::size_t half = from.size() / 2;
  std::byte* const at = slot(number);
  NicCommand command = at_region(NicCommand::store, to, from.size());
  command.staging = offset_of(number);
  if (half == 0 || half >= stride || from.size() >= kRowsBelow) {
    std::memcpy(at, from.data(), from.size());
    return push(command);
  }
  // The two rows are apart in the slot, so that they are not taken for one.
  command.kind = NicCommand::rows;
  command.bytes = half;
  command.stride = static_cast<std::uint32_t>(stride);
  std::memcpy(at, from.data(), half);
  std::memcpy(at + stride, from.data() + half, half);
  const bool is_odd = from.size() % 2 != 0;
  if (is_odd) {
    at[half] = from[from.size() - 2];
    at[stride + half] = from[from.size() - 1];
  }
  ORIEL_CHECK(push(command));
  if (!is_odd) return {};
  // The last byte goes with its neighbour, which is copied twice.
  command.offset += from.size() - 2;
  command.staging += half;
  command.bytes = 1;
  return push(command);
}

Status NicProcessStream::poll() {
  if (memory_.failed().load(std::memory_order_acquire) != 0) {
    const NicChannelHeader& header = memory_.header();
    const std::string text(header.text.data(), ::strnlen(header.text.data(), header.text.size()));
    return Error(ErrorCode::cuda, "a software NIC's process says: " + text)
        .with_native(NativeDomain::cuda_driver, header.native);
  }
  const std::uint64_t consumed = memory_.consumed().load(std::memory_order_acquire);
  if (consumed > produced_ || produced_ - consumed > kNicCommands) {
    return Error(
        ErrorCode::remote,
        fmt::format("a software NIC's process has taken {} commands of {}", consumed, produced_));
  }
  return process_->poll();
}

void NicProcessStream::close() noexcept {
  if (std::exchange(closed_, true)) return;
  process_->close_channel(channel_);
}

void NicProcess::close_channel(std::uint32_t channel) noexcept {
  bool is_lost = false;
  {
    const std::lock_guard lock(mutex_);
    static_cast<void>(ask(nic_request::Close{channel}, nullptr));
    is_lost = !error_.ok();
  }
  // The process might still be copying.
  if (is_lost) end();
}

Result<std::unique_ptr<CopyStream>> NicProcess::open_stream(std::shared_ptr<NicProcess> process,
                                                            std::uint32_t slots,
                                                            std::uint32_t slot_bytes) {
  const std::size_t bytes = channel_bytes(slots, slot_bytes);
  ORIEL_TRY(const OwnedFd fd, make_sealed_memfd(bytes));
  ORIEL_TRY(SharedMapping memory, SharedMapping::map(fd, bytes));
  nic_request::Open open;
  open.slots = slots;
  open.slot_bytes = slot_bytes;
  {
    const std::lock_guard lock(process->mutex_);
    open.channel = ++process->last_number_;
    ORIEL_CHECK(process->ask(open, &fd));
  }
  return std::unique_ptr<CopyStream>(std::make_unique<NicProcessStream>(
      std::move(process), open.channel, std::move(memory), slot_bytes));
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device_comm.hpp"

#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/barrier.hpp"

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator.hpp"

namespace oriel::comm {
namespace {

// Far more CTAs than any GPU runs at once; bounds what a wrong argument can allocate.
constexpr std::uint32_t kBarrierSlotsMost = 65536;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

DeviceCommMemory::DeviceCommMemory(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {}

DeviceCommMemory::DeviceCommMemory(DeviceCommMemory&& other) noexcept
    : communicator_(std::move(other.communicator_)),
      layout_(other.layout_),
      memory_(std::exchange(other.memory_, nullptr)),
      handle_(std::exchange(other.handle_, nullptr)),
      view_(std::exchange(other.view_, {})) {}

DeviceCommMemory::~DeviceCommMemory() {
  if (memory_ == nullptr) return;
  Status released;
  if (handle_ != nullptr) released = communicator_->windows_->deregister(handle_);
  Status freed = communicator_->device_->memory().free(memory_);
  for (const Status* status : {&released, &freed}) {
    if (!status->ok()) Log(communicator_->rank()).warn("{}", status->error().to_string());
  }
}

Task<Status> DeviceCommMemory::prepare(EventLoop& loop, DeviceCommRequest request,
                                       Deadline deadline) {
  if (request.barrier_slots < 1 || request.barrier_slots > kBarrierSlotsMost) {
    co_return Error(ErrorCode::invalid_argument,
                    fmt::format("barrier_slots is {}", request.barrier_slots))
        .with_hint(fmt::format("1 to {} are allowed: the number of CTAs of the largest kernel",
                               kBarrierSlotsMost));
  }
  const auto& facts = communicator_->team_facts_;
  const auto lsa_size = static_cast<std::int32_t>(facts.members.size());
  const auto ranks = std::as_bytes(std::span(facts.members));
  std::vector<std::byte> table(ranks.begin(), ranks.end());
  layout_.ranks = round_up(layout_.doorbell + sizeof(device::Doorbell), 64);
  // Windows have one size on all ranks: that which the largest team needs.
  const auto largest = static_cast<std::uint64_t>(communicator_->largest_team_);
  layout_.barrier = round_up(layout_.ranks + largest * sizeof(std::int32_t), 64);
  layout_.total_bytes = layout_.barrier + device::LsaBarrierLayout::bytes_needed(
                                              communicator_->largest_team_, request.barrier_slots);

  auto& device = *communicator_->device_;
  ORIEL_CO_TRY(memory_, co_await device.make_control(loop, layout_.total_bytes, layout_.ranks,
                                                     std::move(table), deadline));
  view_.world_rank = facts.world_rank;
  view_.world_size = facts.world_size;
  view_.lsa_rank = facts.index;
  view_.lsa_size = lsa_size;
  view_.barrier_slots = request.barrier_slots;
  view_.barrier_offset = layout_.barrier;
  view_.doorbell_offset = layout_.doorbell;
  co_return Status();
}

void DeviceCommMemory::show(char* control_base, std::uint32_t stride_4g) {
  view_.control_base = control_base;
  view_.control_stride_4g = stride_4g;
  view_.lsa_world_ranks =
      reinterpret_cast<const std::int32_t*>(view_.control(view_.lsa_rank, layout_.ranks));
  view_.wait = communicator_->wait_control(view_.control(view_.lsa_rank, layout_.doorbell));
}

Task<Result<DeviceCommMemory>> Communicator::build_device_comm(EventLoop& loop,
                                                               DeviceCommRequest request) {
  ORIEL_CO_CHECK(check_usable());
  const Deadline deadline = Deadline::after(settings_->timeout, loop.clock());
  ORIEL_CO_TRY(const auto activity, session_->activate(loop, deadline));
  DeviceCommMemory made(shared_from_this());
  Status local = co_await made.prepare(loop, request, deadline);
  std::vector<boot::AgreedField> fields = {
      {"the number of barrier slots (barrier_slots)", request.barrier_slots}};
  ORIEL_CO_CHECK(co_await session_->world().agree(boot::Operation::control_window, std::move(local),
                                                  std::move(fields)));

  std::vector<window::WindowRequest> requests;
  requests.push_back({made.memory_, made.layout_.total_bytes, window::kWindowFlagsKnown});
  auto registered = co_await windows_->register_batch(loop, boot::Operation::control_window,
                                                      std::move(requests), deadline);
  if (!registered.ok()) {
    co_return std::move(registered).error().with_context("making a device communicator");
  }
  const window::RegisteredWindow& control = registered.value().front();
  made.handle_ = control.handle;
  made.show(reinterpret_cast<char*>(control.flat_base),
            static_cast<std::uint32_t>(slot_bytes_ >> 32));
  co_return std::move(made);
}

}  // namespace oriel::comm

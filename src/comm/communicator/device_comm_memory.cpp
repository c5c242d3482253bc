// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/device_comm_memory.hpp"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/barrier.hpp"
#include "oriel/device/world_barrier.hpp"

#include "base/alignment.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "comm/communicator/teams_network.hpp"
#include "comm/communicator/wait_control.hpp"

namespace oriel::comm {
namespace {

// Limits what a wrong argument can allocate; far more than the CTAs that any GPU runs at once.
constexpr std::uint32_t kBarrierSlotsMost = 65536;
constexpr std::uint32_t kSignalsMost = 65536;
constexpr std::uint32_t kCountersMost = 4096;

Status check_count(const char* name, std::uint32_t value, std::uint32_t least, std::uint32_t most,
                   const char* hint) {
  if (value >= least && value <= most) return {};
  return Error(ErrorCode::invalid_argument, fmt::format("{} is {}", name, value))
      .with_hint(fmt::format("{} to {} are allowed{}", least, most, hint));
}

Status check_request(const DeviceCommRequest& request) {
  if (request.device_version != device::kDeviceVersion) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the caller was compiled with version {} of Oriel's device headers, "
                             "this library with {}",
                             request.device_version, device::kDeviceVersion))
        .with_hint("compile the program and its kernels with the headers of this library");
  }
  ORIEL_CHECK(check_count("barrier_slots", request.barrier_slots, 1, kBarrierSlotsMost,
                          ": the number of CTAs of the largest kernel"));
  ORIEL_CHECK(check_count("signals", request.signals, 0, kSignalsMost, ""));
  return check_count("counters", request.counters, 0, kCountersMost, "");
}

}  // namespace

DeviceCommMemory::DeviceCommMemory(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {}

DeviceCommMemory::DeviceCommMemory(DeviceCommMemory&& other) noexcept
    : forks_(other.forks_),
      communicator_(std::move(other.communicator_)),
      layout_(other.layout_),
      world_(other.world_),
      has_doorbell_(std::exchange(other.has_doorbell_, false)),
      memory_(std::exchange(other.memory_, nullptr)),
      handle_(std::exchange(other.handle_, nullptr)),
      view_(std::exchange(other.view_, {})) {}

DeviceCommMemory::~DeviceCommMemory() {
  if (memory_ == nullptr || forks_ != fork_count()) return;
  if (has_doorbell_) communicator_->parts_.network->remove_doorbell(*view_.wait.doorbell);
  Status released;
  if (handle_ != nullptr) released = communicator_->parts_.windows->deregister(handle_);
  Status freed = communicator_->parts_.device->memory().free(memory_);
  for (const Status* status : {&released, &freed}) {
    if (!status->ok()) Log(communicator_->rank()).warn("{}", status->error().to_string());
  }
}

Task<Status> DeviceCommMemory::prepare(EventLoop& loop, DeviceCommRequest request,
                                       Deadline deadline) {
  ORIEL_CO_CHECK(check_request(request));
  const auto& facts = communicator_->parts_.team_facts;
  const auto lsa_size = static_cast<std::int32_t>(facts.members.size());
  const auto ranks = std::as_bytes(std::span(facts.members));
  std::vector<std::byte> table(ranks.begin(), ranks.end());
  lay_out(request);

  auto& device = *communicator_->parts_.device;
  ORIEL_CO_TRY(memory_, co_await device.make_control(loop, layout_.total_bytes, layout_.ranks,
                                                     std::move(table), deadline));
  view_.world_rank = facts.world_rank;
  view_.world_size = facts.world_size;
  view_.communicator = facts.communicator;
  view_.lsa_rank = facts.index;
  view_.lsa_size = lsa_size;
  view_.barrier_slots = request.barrier_slots;
  view_.barrier_offset = layout_.barrier;
  view_.doorbell_offset = layout_.doorbell;
  view_.signals = request.signals;
  view_.counters = request.counters;
  view_.signal_offset = layout_.signals;
  view_.counter_offset = layout_.counters;
  view_.world_barrier_slots = request.world ? request.barrier_slots : 0;
  view_.world_barrier_offset = layout_.world_barrier;
  world_ = request.world;
  co_return Status();
}

void DeviceCommMemory::lay_out(const DeviceCommRequest& request) {
  const auto world_size = static_cast<std::uint64_t>(communicator_->size());
  layout_.ranks = round_up(layout_.doorbell + sizeof(device::Doorbell), 64);
  // A window has the same size on all ranks, so it has room for the largest team.
  const auto largest = static_cast<std::uint64_t>(communicator_->parts_.largest_team);
  layout_.barrier = round_up(layout_.ranks + largest * sizeof(std::int32_t), 64);
  layout_.signals =
      layout_.barrier + device::LsaBarrierLayout::bytes_needed(communicator_->parts_.largest_team,
                                                               request.barrier_slots);
  layout_.counters = round_up(layout_.signals + request.signals * sizeof(device::SignalWords), 64);
  layout_.world_barrier =
      round_up(layout_.counters + request.counters * world_size * sizeof(std::uint64_t), 64);
  layout_.total_bytes = layout_.world_barrier;
  if (request.world) {
    layout_.total_bytes += request.barrier_slots * sizeof(device::WorldBarrierSlot);
  }
}

void DeviceCommMemory::show(char* control_base, std::uint32_t stride_4g) {
  view_.control_base = control_base;
  view_.control_stride_4g = stride_4g;
  view_.lsa_world_ranks =
      reinterpret_cast<const std::int32_t*>(view_.control(view_.lsa_rank, layout_.ranks));
  view_.wait = wait_control(communicator_->parts_, view_.control(view_.lsa_rank, layout_.doorbell));
  const device::WindowView window = communicator_->window_view(handle_);
  view_.lsa_index_of = window.lsa_index_of;
  if (!world_ || communicator_->parts_.network == nullptr) return;
  view_.network = communicator_->parts_.network->kernel_view();
  view_.control_network = window.network;
  if (view_.wait.doorbell == nullptr) return;  // GPUs, and CPU ranks whose NIC rings no doorbells
  communicator_->parts_.network->add_doorbell(*view_.wait.doorbell);
  has_doorbell_ = true;
}

Task<Result<DeviceCommMemory>> Communicator::build_device_comm(EventLoop& loop,
                                                               DeviceCommRequest request) {
  ORIEL_CO_CHECK(check_usable());
  const Deadline deadline = Deadline::after(parts_.settings->timeout, loop.clock());
  ORIEL_CO_TRY(const auto activity, parts_.session->activate(loop, deadline));
  DeviceCommMemory made(shared_from_this());
  Status local = co_await made.prepare(loop, request, deadline);
  std::vector<boot::AgreedField> fields = {
      {"the number of barrier slots (barrier_slots)", request.barrier_slots},
      {"the number of signals (signals)", request.signals},
      {"the number of counters (counters)", request.counters},
      {"whether all nodes are to be reached (world)", request.world ? 1u : 0u}};
  ORIEL_CO_CHECK(co_await parts_.session->world().agree(boot::Operation::control_window,
                                                        std::move(local), std::move(fields)));

  if (request.world) ORIEL_CO_CHECK(co_await make_network(loop, parts_, deadline));

  std::optional<OwnWords> signals(std::in_place, parts_.network_windows.get(), made.memory_);
  std::vector<window::WindowRequest> requests;
  requests.push_back({made.memory_, made.layout_.total_bytes, window::kWindowFlagsKnown});
  auto registered = co_await parts_.windows->register_batch(loop, boot::Operation::control_window,
                                                            std::move(requests), deadline);
  signals.reset();
  if (!registered.ok()) {
    co_return std::move(registered).error().with_context("making a device communicator");
  }
  const window::RegisteredWindow& control = registered.value().front();
  made.handle_ = control.handle;
  made.show(reinterpret_cast<char*>(control.flat_base),
            static_cast<std::uint32_t>(parts_.slot_bytes >> 32));
  co_return std::move(made);
}

}  // namespace oriel::comm

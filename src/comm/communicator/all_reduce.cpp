// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "kernels/plan/call_record.hpp"

/// The front door of the all-reduce inside one LSA team: arguments from facts that all ranks share.
/// collectives.cpp checks calls, and has those that go among teams.
namespace oriel::comm {
namespace {

// Spinning pays only while every rank of the node has a processor to itself. That there are enough
// of them does not say that two ranks are not on one, where each call would take two full spins;
// and where nothing else wants the processor, yielding costs a wait 0.3 us.
void tune_waits(device::WaitControl& wait, int ranks_here, std::int64_t spin_microseconds) {
  static const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const bool crowded = static_cast<unsigned>(ranks_here) > processors;
  wait.spin_ns = crowded ? 500 : 5'000;
  wait.yield_ns = crowded ? 20'000 : 200'000;
  if (spin_microseconds >= 0) {
    wait.spin_ns =
        static_cast<std::uint32_t>(std::min<std::int64_t>(spin_microseconds, 1'000'000) * 1000);
  }
}

}  // namespace

device::Doorbell* Communicator::own_doorbell() const {
  const auto slot = static_cast<std::size_t>(team_facts_.index);
  return reinterpret_cast<device::Doorbell*>(control_.flat_base + slot * slot_bytes_ +
                                             layout_.doorbell);
}

device::WaitControl Communicator::wait_control(void* doorbell) const {
  Notices* const notices = notices_->on_device();
  device::WaitControl wait;
  wait.abort = &notices->abort;
  wait.stall = &notices->stall;
  wait.self = rank();
  if (settings_->collective_timeout) {
    wait.timeout_ns = static_cast<std::uint64_t>(
        std::max<Duration>(Duration(1), *settings_->collective_timeout).count());
  }
  if (on_host()) {
    // Nobody would ring it for what an adapter has written.
    const bool is_woken = network_ == nullptr || network_->wakes_waiters();
    wait.doorbell = is_woken ? static_cast<device::Doorbell*>(doorbell) : nullptr;
    // Nodes of one machine (ORIEL_HOSTID) share its processors, other machines have their own.
    const int ranks_here = network_ != nullptr ? network_->ranks_on_machine()
                                               : static_cast<int>(team_facts_.members.size());
    tune_waits(wait, ranks_here, settings_->spin_microseconds);
  }
  return wait;
}

kernels::AllReduceArguments Communicator::make_arguments(const CollectiveRequest& request,
                                                         const kernels::Plan& plan) const {
  const auto ranks = static_cast<std::int32_t>(team_facts_.members.size());
  const auto split =
      kernels::split_work(plan, device_->backend(), ranks, request.type, request.count);
  kernels::AllReduceArguments arguments;
  arguments.input = static_cast<const std::byte*>(request.input);
  arguments.output = static_cast<std::byte*>(request.output);
  arguments.count = request.count;
  arguments.scratch = control_.flat_base;
  arguments.stride_4g = static_cast<std::uint32_t>(slot_bytes_ >> 32);
  arguments.rank = team_facts_.index;
  arguments.ranks = ranks;
  arguments.average = request.op == ReduceOp::avg;
  arguments.scaled = request.op == ReduceOp::premul_sum;
  arguments.maximum = request.op == ReduceOp::max;
  arguments.layout = layout_;
  arguments.share = split.share;
  arguments.part = split.part;
  arguments.flat_base = control_.flat_base - control_.slot_offset;
  arguments.chunk_bytes = plan.chunk_bytes;
  arguments.depth = plan.depth;
  arguments.lead = plan.lead;
  arguments.scalar_bits = request.scalar_bits;
  arguments.scalar_pointer = request.scalar_pointer;
  arguments.type = request.type;
  arguments.op = request.op;
  arguments.wait = wait_control(own_doorbell());
  arguments.failure = &notices_->on_device()->failure;
  if (plan.algorithm == kernels::Algorithm::stream) {
    const std::size_t bytes = request.count * size_of(request.type);
    const auto offset_of = [&](const void* pointer) {
      const auto window = windows_->find(pointer, bytes);
      if (!window) return kernels::kNoOffset;
      return static_cast<std::uint64_t>(window->slot_offset) +
             static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - window->user);
    };
    arguments.input_offset = offset_of(request.input);
    arguments.output_offset = offset_of(request.output);
  }
  arguments.signature = kernels::all_reduce_signature(request.type, request.op, request.count,
                                                      plan.algorithm, request.collective);

  if (request.scalar_pointer != nullptr && on_host()) {
    std::memcpy(&arguments.scalar_bits, request.scalar_pointer, size_of(request.type));
    arguments.scalar_pointer = nullptr;
  }
  return arguments;
}

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_queue.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/mlx5/mlx5_connect.hpp"
#include "net/mlx5/mlx5_queue_memory.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

std::uint32_t log2_of(std::uint32_t power) {
  return static_cast<std::uint32_t>(std::countr_zero(power));
}

dq::CompletionTail tail_of(const dq::Completion& completion) {
  return dq::decode_tail(
      device::Memory::load<device::Order::acquire, device::Scope::system>(&completion.tail));
}

Status check_options(const Mlx5Queue::Options& options, const Mlx5Device& device) {
  const std::uint32_t depth = options.depth;
  const std::uint32_t log_most =
      std::min(device.capabilities().log_qp_size_most, device.capabilities().log_cq_size_most);
  const std::uint32_t most = log_most < 15 ? 1u << log_most : dq::kDepthMost;
  const std::string where = fmt::format("{} port {}", device.place().device, device.place().port);
  if (!std::has_single_bit(depth) || depth < dq::kDepthLeast || depth > most) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: a queue of {} WQEBBs: it takes a power of two from {} to {}",
                             where, depth, dq::kDepthLeast, most))
        .with_hint("set Options::depth to an allowed value");
  }
  if (!std::has_single_bit(options.fetch_slots) || options.fetch_slots > depth) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: {} slots for old values: a power of two up to the depth of {}",
                             where, options.fetch_slots, depth))
        .with_hint("set Options::fetch_slots to an allowed value");
  }
  const bool receives_fit = options.receives == 0 || (std::has_single_bit(options.receives) &&
                                                      options.receives >= mlx5::kReceivesLeast);
  if (!receives_fit || options.receives > most) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: {} receives: 0 or a power of two from {} to {}", where,
                             options.receives, mlx5::kReceivesLeast, most))
        .with_hint("set Options::receives to an allowed value");
  }
  if (options.psn > 0xffffff) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: first packet number {:#x}: 24 bits are possible", where,
                             options.psn))
        .with_hint("pass a packet number below 0x1000000");
  }
  return {};
}

}  // namespace

/// Members are destroyed in reverse order.
struct Mlx5Queue::State {
  std::shared_ptr<const Mlx5Device> device;
  Options options;
  Mlx5QueueMemory memory;
  Mlx5Doorbell doorbell;
  Mlx5ObjectOwner completion_queue;
  Mlx5ObjectOwner received_queue;
  Mlx5ObjectOwner queue_pair;
  std::uint32_t number = 0;
  dq::QueueView view;
  dq::ReceiveView receives;

  Result<std::uint32_t> make_completion_queue(Mlx5ObjectOwner& owner, const mlx5::RingPlace& place,
                                              std::uint32_t elements, bool collapsed);
  Status make_objects();
  void fill_view();
  std::string purpose() const {
    return fmt::format("a queue of {} WQEBBs for rank {}", options.depth, options.peer);
  }
};

void Mlx5Queue::State::fill_view() {
  memory.describe(view, receives);
  view.number = number;
  view.peer = options.peer;
  view.reader = device::Scope::system;
  view.doorbell = doorbell.user();
}

Result<std::uint32_t> Mlx5Queue::State::make_completion_queue(Mlx5ObjectOwner& owner,
                                                              const mlx5::RingPlace& place,
                                                              std::uint32_t elements,
                                                              bool collapsed) {
  mlx5::CqSettings cq;
  cq.place = place;
  cq.log_size = log2_of(elements);
  cq.log_page_size = memory.log_ring_page();
  cq.uar_page = doorbell.page_number();
  cq.event_queue = device->event_queue();
  cq.collapsed = collapsed;
  std::uint32_t cq_number = 0;
  ORIEL_TRY(owner, device->create(mlx5::create_cq(cq), "CREATE_CQ", purpose(), cq_number));
  return cq_number;
}

Status Mlx5Queue::State::make_objects() {
  const Mlx5RingLayout& layout = memory.layout();
  const std::uint32_t records = memory.completion_umem();
  mlx5::QpSettings qp;
  ORIEL_TRY(qp.cq,
            make_completion_queue(completion_queue, {records, records, layout.completion_record},
                                  options.depth, true));
  if (options.receives != 0) {
    ORIEL_TRY(qp.receive_cq,
              make_completion_queue(received_queue,
                                    {memory.received_umem(), records, layout.received_record},
                                    options.receives, false));
  }
  qp.place = {memory.ring_umem(), records, layout.queue_record};
  qp.log_size = log2_of(options.depth);
  qp.domain = device->domain_number();
  qp.uar_page = doorbell.page_number();
  qp.receives = options.receives;
  ORIEL_TRY(queue_pair, device->create(mlx5::create_qp(qp), "CREATE_QP", purpose(), number));
  return {};
}

Mlx5Queue::Mlx5Queue(std::unique_ptr<State> state) : state_(std::move(state)) {}
Mlx5Queue::Mlx5Queue(Mlx5Queue&&) noexcept = default;
Mlx5Queue& Mlx5Queue::operator=(Mlx5Queue&&) noexcept = default;
Mlx5Queue::~Mlx5Queue() = default;

Result<Mlx5Queue> Mlx5Queue::create(std::shared_ptr<const Mlx5Device> device, Mlx5Memory& memory,
                                    Mlx5Doorbells& doorbells, const Options& options) {
  ORIEL_CHECK(check_options(options, *device));
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  state->options = options;
  ORIEL_CHECK(state->memory.allocate(memory, options));
  ORIEL_TRY(state->view.gets_need_dump, memory.gets_need_dump());
  ORIEL_CHECK(state->memory.fill());
  ORIEL_CHECK(state->memory.register_with(*state->device, memory));
  ORIEL_TRY(state->doorbell, doorbells.make(memory, options.doorbell));
  ORIEL_CHECK(state->make_objects());
  state->fill_view();
  return Mlx5Queue(std::move(state));
}

std::uint32_t Mlx5Queue::number() const {
  return state_->number;
}

Mlx5QueueHandle Mlx5Queue::handle() const {
  return own_handle(*state_->device, state_->number, state_->options.psn);
}

Status Mlx5Queue::connect(const Mlx5QueueHandle& peer) {
  State& state = *state_;
  return connect_queue(*state.device, state.queue_pair, handle(), peer,
                       [&] { return state.memory.publish_receives(); });
}

Status Mlx5Queue::to_error() {
  return state_->device->modify(state_->queue_pair, mlx5::to_error(state_->number), "2ERR_QP",
                                fmt::format("queue {:#x}", state_->number));
}

std::optional<dq::QueueError> Mlx5Queue::error() const {
  const dq::Completion& completion = state_->memory.own_completion();
  const dq::CompletionTail tail = tail_of(completion);
  if (tail.kind != dq::CompletionKind::request_error) return std::nullopt;
  const dq::Syndromes syndromes = dq::decode_syndromes(
      device::Memory::load<device::Order::relaxed, device::Scope::system>(&completion.status));
  return dq::QueueError{syndromes.syndrome, syndromes.vendor, tail.opcode, tail.index};
}

bool Mlx5Queue::is_idle() const {
  const std::uint32_t* const record = state_->memory.own_send_record();
  const auto reported = static_cast<std::uint16_t>(
      dq::big_endian(device::Memory::load<device::Order::acquire, device::Scope::system>(record)));
  const dq::CompletionTail tail = tail_of(state_->memory.own_completion());
  if (tail.kind == dq::CompletionKind::invalid) return reported == 0;
  return tail.kind != dq::CompletionKind::request ||
         static_cast<std::uint16_t>(tail.index + 1) == reported;
}

bool Mlx5Queue::is_rung_by_processor() const {
  return state_->doorbell.is_rung_by_processor();
}

const dq::QueueView& Mlx5Queue::view() const {
  return state_->view;
}

const dq::ReceiveView& Mlx5Queue::receives() const {
  return state_->receives;
}

}  // namespace oriel::net

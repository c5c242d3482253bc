// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_queue.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/mlx5/mlx5_connect.hpp"
#include "net/queue/memory_keys.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

constexpr std::size_t kElementBytes = 64;
constexpr std::size_t kDoorbellBytes = 8;

std::size_t up_to(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint32_t log2_of(std::uint32_t power) {
  return static_cast<std::uint32_t>(std::countr_zero(power));
}

/// Where things lie in the memory that the adapter makes rings of: receives and behind them blocks,
/// then, on pages of their own, completions of sends and all doorbell records, and on others those
/// of receives.
struct RingLayout {
  std::size_t blocks;
  std::size_t completions;
  std::size_t queue_record;  ///< behind `completions`, as the next two: receives, sends
  std::size_t completion_record;
  std::size_t received_record;
  std::size_t received;
  std::size_t bytes;

  RingLayout(std::uint32_t depth, std::uint32_t receives, std::size_t page)
      : blocks(receives * mlx5::kReceiveBytes),
        completions(up_to(blocks + depth * sizeof(dq::Block), page)),
        queue_record(depth * kElementBytes),
        completion_record(queue_record + 64),
        received_record(completion_record + 64),
        received(completions + up_to(received_record + 64, page)),
        bytes(received + up_to(receives * kElementBytes, page)) {}
};

/// And in that of the users' own words: the slots first, which have a key.
struct WordLayout {
  std::size_t slots_bytes;
  std::size_t indexes;
  std::size_t marks;
  std::size_t turns;
  std::size_t position;
  std::size_t bytes;

  WordLayout(const Mlx5Queue::Options& options, std::size_t page)
      : slots_bytes(up_to((options.fetch_slots + std::size_t{1}) * 8, page)),
        indexes(slots_bytes),
        marks(indexes + up_to(sizeof(dq::QueueIndexes), 128)),
        turns(marks + up_to(options.depth * std::size_t{8}, 128)),
        position(turns + up_to(options.fetch_slots * std::size_t{8}, 128)),
        bytes(up_to(position + sizeof(dq::ReceivePosition), page)) {}
};

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
                 fmt::format("{}: a queue of {} blocks: it takes a power of two from {} to {}",
                             where, depth, dq::kDepthLeast, most));
  }
  if (!std::has_single_bit(options.batch) || options.batch > depth - dq::kReservationMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: a doorbell for {} blocks of {}: a power of two up to {} is "
                             "possible",
                             where, options.batch, depth, depth - dq::kReservationMost));
  }
  if (!std::has_single_bit(options.fetch_slots) || options.fetch_slots > depth) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: {} slots for old values: a power of two up to the depth of {}",
                             where, options.fetch_slots, depth));
  }
  const bool receives_fit = options.receives == 0 || (std::has_single_bit(options.receives) &&
                                                      options.receives >= mlx5::kReceivesLeast);
  if (!receives_fit || options.receives > most) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: {} receives: 0 or a power of two from {} to {}", where,
                             options.receives, mlx5::kReceivesLeast, most));
  }
  if (options.psn > 0xffffff) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: packets counted from {:#x}: 24 bits are possible", where, options.psn));
  }
  return {};
}

}  // namespace

/// Members are destroyed from the last to the first.
struct Mlx5Queue::State {
  std::shared_ptr<const Mlx5Device> device;
  Options options;
  std::unique_ptr<QueuePages> words;
  std::unique_ptr<QueuePages> rings;
  Mlx5RegionOwner slots;
  Mlx5UmemOwner ring_umem;
  Mlx5UmemOwner completion_umem;
  Mlx5UmemOwner received_umem;
  Mlx5UarOwner uar;
  std::unique_ptr<QueuePages> bell_slot;
  std::unique_ptr<Mlx5Mapping> mapping;
  Mlx5Ringer::Bell bell;
  Mlx5ObjectOwner completion_queue;
  Mlx5ObjectOwner received_queue;
  Mlx5ObjectOwner queue_pair;
  std::uint32_t number = 0;
  dq::QueueView view;
  dq::ReceiveView receives;
  std::uint32_t told_receives = 0;  // what the record says

  const dq::Completion& own_completion() const {
    return *reinterpret_cast<const dq::Completion*>(rings->own() + layout.completions);
  }
  Status allocate(Mlx5Memory& memory);
  Status register_with_adapter(Mlx5Memory& memory);
  Status make_doorbell(Mlx5Memory& memory, const std::shared_ptr<Mlx5Ringer>& ringer);
  Result<std::uint32_t> make_completion_queue(Mlx5ObjectOwner& owner, const mlx5::RingPlace& place,
                                              std::uint32_t elements, bool collapsed);
  Status make_objects();
  Status fill_memory();
  void fill_view();
  /// Has the adapter know of so many.
  Status tell_receives(std::uint32_t count);
  std::string purpose() const {
    return fmt::format("a queue of {} blocks for rank {}", options.depth, options.peer);
  }

  RingLayout layout{128, 0, 4096};
  std::size_t page = 4096;
};

Status Mlx5Queue::State::allocate(Mlx5Memory& memory) {
  page = memory.page_bytes();
  layout = RingLayout(options.depth, options.receives, page);
  const WordLayout words_at(options, page);
  ORIEL_TRY(words, memory.allocate(words_at.bytes));
  if (options.ring_on_host) {
    ORIEL_TRY(rings, memory.allocate_on_host(layout.bytes));
  } else {
    ORIEL_TRY(rings, memory.allocate(layout.bytes));
  }
  fill_view();
  ORIEL_TRY(view.gets_need_dump, memory.gets_need_dump());
  return fill_memory();
}

Status Mlx5Queue::State::fill_memory() {
  const WordLayout words_at(options, page);
  Bytes image(layout.bytes);
  const Bytes entries = mlx5::empty_receives(options.receives);
  std::copy(entries.begin(), entries.end(), image.begin());
  // What completions that have not been written look like.
  const auto fill_ones = [&](std::size_t at, std::uint32_t elements) {
    std::fill_n(image.begin() + static_cast<std::ptrdiff_t>(at), elements * kElementBytes,
                std::byte{0xff});
  };
  fill_ones(layout.completions, options.depth);
  fill_ones(layout.received, options.receives);
  ORIEL_CHECK(rings->write(0, image));
  told_receives = 0;
  image.assign(words_at.bytes, std::byte{0});
  for (std::uint64_t slot = 0; slot < options.fetch_slots; ++slot) {
    std::memcpy(image.data() + words_at.turns + slot * 8, &slot, sizeof slot);
  }
  // All receives are there for the peer from the beginning: connect() tells of them.
  const dq::ReceivePosition begin{.taken = 0, .posted = options.receives};
  std::memcpy(image.data() + words_at.position, &begin, sizeof begin);
  return words->write(0, image);
}

Status Mlx5Queue::State::tell_receives(std::uint32_t count) {
  if (count == told_receives) return {};
  const std::uint32_t word = dq::big_endian(count);
  ORIEL_CHECK(
      rings->write(layout.completions + layout.queue_record, std::as_bytes(std::span(&word, 1))));
  told_receives = count;
  return {};
}

void Mlx5Queue::State::fill_view() {
  const WordLayout words_at(options, page);
  std::byte* const ring = rings->user();
  std::byte* const tail = ring + layout.completions;
  std::byte* const word = words->user();
  view.ring = reinterpret_cast<dq::Block*>(ring + layout.blocks);
  view.depth = options.depth;
  view.peer = options.peer;
  view.batch = options.batch;
  view.publication = options.publication;
  view.reader = device::Scope::system;
  // The record's first word is that of receives.
  auto* const record = reinterpret_cast<std::uint32_t*>(tail + layout.queue_record);
  view.doorbell_record = record + 1;
  view.completion = reinterpret_cast<const dq::Completion*>(tail);
  view.indexes = reinterpret_cast<dq::QueueIndexes*>(word + words_at.indexes);
  view.marks = reinterpret_cast<std::uint64_t*>(word + words_at.marks);
  view.fetch_values = reinterpret_cast<std::uint64_t*>(word);
  view.fetch_turns = reinterpret_cast<std::uint64_t*>(word + words_at.turns);
  view.fetch_slots = options.fetch_slots;
  if (options.receives == 0) return;
  receives.completions = reinterpret_cast<const dq::Completion*>(ring + layout.received);
  receives.record = record;
  receives.position = reinterpret_cast<dq::ReceivePosition*>(word + words_at.position);
  receives.count = options.receives;
}

Status Mlx5Queue::State::register_with_adapter(Mlx5Memory& memory) {
  const auto export_of = [&](std::byte* address, std::size_t bytes) -> Result<Mlx5Export> {
    if (options.ring_on_host) return Mlx5Export();
    return memory.export_range(address, bytes);
  };
  const WordLayout words_at(options, page);
  ORIEL_TRY(const Mlx5Export slots_at, memory.export_range(words->own(), words_at.slots_bytes));
  ORIEL_TRY(slots,
            device->register_memory(words->own(), words_at.slots_bytes, slots_at, kLocalWrite));
  view.fetch_key = slots->local_key;
  const auto register_part = [&](Mlx5UmemOwner& umem, std::size_t begin,
                                 std::size_t end) -> Status {
    std::byte* const part = rings->own() + begin;
    ORIEL_TRY(const Mlx5Export at, export_of(part, end - begin));
    ORIEL_TRY(umem, device->register_umem(part, end - begin, at));
    return {};
  };
  ORIEL_CHECK(register_part(ring_umem, 0, layout.completions));
  ORIEL_CHECK(register_part(completion_umem, layout.completions, layout.received));
  if (options.receives == 0) return {};
  return register_part(received_umem, layout.received, layout.bytes);
}

Status Mlx5Queue::State::make_doorbell(Mlx5Memory& memory,
                                       const std::shared_ptr<Mlx5Ringer>& ringer) {
  const VerbsTable& verbs = device->verbs();
  // Some kernels have registers with write-combining mappings only.
  uar = Mlx5UarOwner(verbs, verbs.alloc_uar(device->context(), VerbsConstants::kUarNotCached));
  const bool combining = !uar;
  if (combining) {
    uar = Mlx5UarOwner(verbs, verbs.alloc_uar(device->context(), VerbsConstants::kUarBlueFlame));
  }
  if (!uar) {
    return mlx5_error(device->place(), "mlx5dv_devx_alloc_uar", "a doorbell register", errno);
  }
  if (options.doorbell != DoorbellChoice::cpu) {
    auto mapped = memory.map_register(uar->doorbell, kDoorbellBytes, combining);
    if (mapped.ok()) {
      mapping = std::move(mapped).value();
      view.doorbell = mapping->user();
      return {};
    }
    const Mlx5Place& place = device->place();
    if (options.doorbell == DoorbellChoice::gpu) {
      return std::move(mapped).error().with_context(
          fmt::format("mapping the doorbell register of {} port {} for those who post, as "
                      "ORIEL_DOORBELL=gpu demands",
                      place.device, place.port));
    }
    if (ringer->is_first()) {
      Log().warn("a processor rings the doorbells of {} port {}, which adds to every operation: {}",
                 place.device, place.port, mapped.error().to_string());
    }
  }
  ORIEL_TRY(bell_slot, memory.allocate_on_host(sizeof(std::uint64_t)));
  ORIEL_TRY(bell, Mlx5Ringer::serve(ringer, reinterpret_cast<std::uint64_t*>(bell_slot->own()),
                                    uar->doorbell));
  view.doorbell = reinterpret_cast<std::uint64_t*>(bell_slot->user());
  return {};
}

Result<std::uint32_t> Mlx5Queue::State::make_completion_queue(Mlx5ObjectOwner& owner,
                                                              const mlx5::RingPlace& place,
                                                              std::uint32_t elements,
                                                              bool collapsed) {
  constexpr std::size_t kAdapterPage = 4096;
  mlx5::CqSettings cq;
  cq.place = place;
  cq.log_size = log2_of(elements);
  cq.log_page_size =
      options.ring_on_host ? 0 : log2_of(static_cast<std::uint32_t>(page / kAdapterPage));
  cq.uar_page = uar->page_number;
  cq.event_queue = device->event_queue();
  cq.collapsed = collapsed;
  std::uint32_t cq_number = 0;
  ORIEL_TRY(owner, device->create(mlx5::create_cq(cq), "CREATE_CQ", purpose(), cq_number));
  return cq_number;
}

Status Mlx5Queue::State::make_objects() {
  const std::uint32_t records = completion_umem->id;
  mlx5::QpSettings qp;
  ORIEL_TRY(qp.cq, make_completion_queue(completion_queue,
                                         {completion_umem->id, records, layout.completion_record},
                                         options.depth, true));
  if (options.receives != 0) {
    ORIEL_TRY(
        qp.receive_cq,
        make_completion_queue(received_queue, {received_umem->id, records, layout.received_record},
                              options.receives, false));
  }
  qp.place = {ring_umem->id, records, layout.queue_record};
  qp.log_size = log2_of(options.depth);
  qp.domain = device->domain_number();
  qp.uar_page = uar->page_number;
  qp.receives = options.receives;
  ORIEL_TRY(queue_pair, device->create(mlx5::create_qp(qp), "CREATE_QP", purpose(), number));
  view.number = number;
  return {};
}

Mlx5Queue::Mlx5Queue(std::unique_ptr<State> state) : state_(std::move(state)) {}
Mlx5Queue::Mlx5Queue(Mlx5Queue&&) noexcept = default;
Mlx5Queue& Mlx5Queue::operator=(Mlx5Queue&&) noexcept = default;
Mlx5Queue::~Mlx5Queue() = default;

Result<Mlx5Queue> Mlx5Queue::create(std::shared_ptr<const Mlx5Device> device, Mlx5Memory& memory,
                                    const std::shared_ptr<Mlx5Ringer>& ringer,
                                    const Options& options) {
  ORIEL_CHECK(check_options(options, *device));
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  state->options = options;
  ORIEL_CHECK(state->allocate(memory));
  ORIEL_CHECK(state->register_with_adapter(memory));
  ORIEL_CHECK(state->make_doorbell(memory, ringer));
  ORIEL_CHECK(state->make_objects());
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
  ORIEL_CHECK(state.tell_receives(0));  // after a failure that came later
  return connect_queue(*state.device, state.queue_pair, handle(), peer,
                       [&] { return state.tell_receives(state.options.receives); });
}

Status Mlx5Queue::to_error() {
  return state_->device->modify(state_->queue_pair, mlx5::to_error(state_->number), "2ERR_QP",
                                fmt::format("queue {:#x}", state_->number));
}

Status Mlx5Queue::reset(std::uint32_t psn) {
  State& state = *state_;
  Options options = state.options;
  options.psn = psn;
  ORIEL_CHECK(check_options(options, *state.device));
  ORIEL_CHECK(state.device->modify(state.queue_pair, mlx5::to_reset(state.number), "2RST_QP",
                                   fmt::format("queue {:#x}", state.number)));
  state.options = options;
  return state.fill_memory();
}

Result<QueueState> Mlx5Queue::state() const {
  return query_queue(*state_->device, state_->queue_pair, state_->number);
}

std::optional<dq::QueueError> Mlx5Queue::error() const {
  const dq::Completion& completion = state_->own_completion();
  const dq::CompletionTail tail = tail_of(completion);
  if (tail.kind != dq::CompletionKind::request_error) return std::nullopt;
  const dq::Syndromes syndromes = dq::decode_syndromes(
      device::Memory::load<device::Order::relaxed, device::Scope::system>(&completion.status));
  return dq::QueueError{syndromes.syndrome, syndromes.vendor, tail.opcode, tail.index};
}

bool Mlx5Queue::is_idle() const {
  const auto* const record =
      reinterpret_cast<const std::uint32_t*>(state_->rings->own() + state_->layout.completions +
                                             state_->layout.queue_record) +
      1;
  const auto told = static_cast<std::uint16_t>(
      dq::big_endian(device::Memory::load<device::Order::acquire, device::Scope::system>(record)));
  const dq::CompletionTail tail = tail_of(state_->own_completion());
  if (tail.kind == dq::CompletionKind::invalid) return told == 0;
  return tail.kind != dq::CompletionKind::request ||
         static_cast<std::uint16_t>(tail.index + 1) == told;
}

bool Mlx5Queue::is_rung_by_processor() const {
  return state_->bell_slot != nullptr;
}

const dq::QueueView& Mlx5Queue::view() const {
  return state_->view;
}

const dq::ReceiveView& Mlx5Queue::receives() const {
  return state_->receives;
}

}  // namespace oriel::net

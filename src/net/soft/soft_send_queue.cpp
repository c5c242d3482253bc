// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/soft_send_queue.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "net/queue/byte_order.hpp"
#include "net/queue/queue_records.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

constexpr std::size_t kPage = 4096;

/// Memory of this process.
class OwnPages final : public QueuePages {
 public:
  explicit OwnPages(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPage}))) {
    user_ = own_ = memory_.get();
    bytes_ = bytes;
    std::memset(own_, 0, bytes);
  }
  Status write(std::size_t offset, ByteView from) override {
    std::memcpy(own_ + offset, from.data(), from.size());
    return {};
  }

 private:
  struct Delete {
    void operator()(std::byte* pages) const { ::operator delete (pages, std::align_val_t{kPage}); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
};

/// Layout of a queue's objects in two allocations: memory near its users, and memory shared with
/// the NIC. Each object starts on cache lines of its own.
struct Layout {
  explicit Layout(const SendQueue::Options& options)
      : ring(place<dq::Wqebb>(shared_bytes, options.depth)),
        fetch_values(place<std::uint64_t>(shared_bytes, options.fetch_slots + std::size_t{1})),
        doorbell(place<std::uint64_t>(shared_bytes, 1)),
        record(place<std::uint32_t>(shared_bytes, 2)),
        completions(place<std::byte>(shared_bytes, CompletionWriter::kElementBytes)),
        receives(
            place<std::byte>(shared_bytes, CompletionWriter::kElementBytes * options.receives)),
        position(place<dq::ReceivePosition>(shared_bytes, 1)),
        first_error(place<std::uint64_t>(shared_bytes, 1)),
        indexes(place<dq::QueueIndexes>(near_bytes, 1)),
        marks(place<std::uint64_t>(near_bytes, options.depth)),
        fetch_turns(place<std::uint64_t>(near_bytes, options.fetch_slots)) {}

  std::size_t shared_bytes = 0;
  std::size_t near_bytes = 0;
  std::size_t ring, fetch_values, doorbell, record, completions, receives, position, first_error;
  std::size_t indexes, marks, fetch_turns;

 private:
  template <class T>
  static std::size_t place(std::size_t& used, std::size_t count) {
    const std::size_t at = used;
    used += round_up(count * sizeof(T), 128);
    return at;
  }
};

template <class T>
T* at(std::byte* pages, std::size_t offset) {
  return reinterpret_cast<T*>(pages + offset);
}

Status check_options(const SendQueue::Options& options) {
  const std::uint32_t depth = options.depth;
  if (!std::has_single_bit(depth) || depth < dq::kDepthLeast || depth > dq::kDepthMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a send queue of {} WQEBBs: it takes a power of two from {} to {}",
                             depth, dq::kDepthLeast, dq::kDepthMost))
        .with_hint("set Options::depth to an allowed value");
  }
  if (!std::has_single_bit(options.fetch_slots) || options.fetch_slots > depth) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} slots for old values: a power of two up to the depth of {}",
                             options.fetch_slots, depth))
        .with_hint("set Options::fetch_slots to an allowed value");
  }
  // A single CQE has no owner bit that distinguishes rounds.
  const bool receives_fit =
      options.receives == 0 || (std::has_single_bit(options.receives) && options.receives > 1);
  if (!receives_fit || options.receives > dq::kDepthMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} receives: 0 or a power of two from 2 to {}", options.receives,
                             dq::kDepthMost))
        .with_hint("set Options::receives to an allowed value");
  }
  return {};
}

}  // namespace

struct SendQueue::State {
  NicSoft* nic = nullptr;
  NicSoft* namer = nullptr;       // owner of view.fetch_lkey
  std::uint32_t fetch_alias = 0;  // lkey of the slots at `nic`; 0 if `nic` is the namer
  std::unique_ptr<QueuePages> shared;
  std::unique_ptr<QueuePages> near;
  std::uint32_t number = 0;
  QueueMemory memory;
  MemoryRange slots;
  QueueSetup setup;
  std::atomic<TimePoint> answered{TimePoint{}};
  dq::QueueView view;
  dq::ReceiveView receives;
  bool in_process = true;  // the users are threads of this process

  ~State() {
    if (number != 0) static_cast<void>(nic->destroy_queue(number));
    if (fetch_alias != 0) static_cast<void>(nic->deregister_memory(fetch_alias));
    if (view.fetch_lkey != 0) static_cast<void>(namer->deregister_memory(view.fetch_lkey));
  }
  Status allocate(const Options& options, const Layout& layout) {
    if (options.pages == nullptr) {
      shared = std::make_unique<OwnPages>(layout.shared_bytes);
      near = std::make_unique<OwnPages>(layout.near_bytes);
      return {};
    }
    ORIEL_TRY(shared, options.pages->allocate_on_host(layout.shared_bytes));
    ORIEL_TRY(near, options.pages->allocate(layout.near_bytes));
    return {};
  }
  /// Initializes the words for an empty queue.
  Status fill(const Options& options, const Layout& layout) {
    memory.ring = shared->own() + layout.ring;
    memory.depth = options.depth;
    memory.record = at<std::uint32_t>(shared->own(), layout.record);
    memory.doorbell = at<std::uint64_t>(shared->own(), layout.doorbell);
    memory.completions = shared->own() + layout.completions;
    memory.first_error = at<std::uint64_t>(shared->own(), layout.first_error);
    memory.receive_count = options.receives;
    std::memset(memory.completions, 0xff, CompletionWriter::kElementBytes);
    // The initial CQE completes the WQEBB before `base`.
    store_big16(memory.completions + 60, static_cast<std::uint16_t>(options.base - 1));
    if (options.receives != 0) {
      memory.receive_completions = shared->own() + layout.receives;
      std::memset(memory.receive_completions, 0xff,
                  CompletionWriter::kElementBytes * options.receives);
    }
    Bytes words(layout.near_bytes);
    dq::QueueIndexes indexes;
    indexes.begin_at(options.base);
    std::memcpy(words.data() + layout.indexes, &indexes, sizeof indexes);
    for (std::uint64_t i = 0; i < options.fetch_slots; ++i) {
      std::memcpy(words.data() + layout.fetch_turns + i * sizeof i, &i, sizeof i);
    }
    return near->write(0, words);
  }
  Status register_slots(const Options& options, const Layout& layout) {
    slots.address = reinterpret_cast<std::uint64_t>(view.fetch_values);
    slots.bytes = (options.fetch_slots + std::uint64_t{1}) * sizeof(std::uint64_t);
    slots.memory = shared->own() + layout.fetch_values;
    slots.access = kLocalWrite;
    const bool is_own = options.namer == nullptr;
    namer = is_own ? nic : options.namer;
    ORIEL_TRY(view.fetch_lkey, namer->register_memory(slots));
    if (is_own) return {};
    ORIEL_TRY(fetch_alias, nic->register_memory(slots));
    options.aliases->add_local(view.fetch_lkey, fetch_alias);
    return {};
  }
  static dq::ReceiveView receives_in(std::byte* pages, std::uint32_t count, const Layout& layout) {
    if (count == 0) return {};
    return {at<dq::Completion>(pages, layout.receives), at<std::uint32_t>(pages, layout.record),
            at<dq::ReceivePosition>(pages, layout.position), count};
  }
  void show(const Options& options, const Layout& layout) {
    std::byte* const with_nic = shared->user();
    view.ring = at<dq::Wqebb>(with_nic, layout.ring);
    view.doorbell = at<std::uint64_t>(with_nic, layout.doorbell);
    if (options.mode != DoorbellMode::alone) {
      view.doorbell_record = at<std::uint32_t>(with_nic, layout.record) + 1;
    }
    view.completion = at<dq::Completion>(with_nic, layout.completions);
    view.nic_error = at<std::uint64_t>(with_nic, layout.first_error);
    view.fetch_values = at<std::uint64_t>(with_nic, layout.fetch_values);
    view.indexes = at<dq::QueueIndexes>(near->user(), layout.indexes);
    view.marks = at<std::uint64_t>(near->user(), layout.marks);
    view.fetch_turns = at<std::uint64_t>(near->user(), layout.fetch_turns);
    view.depth = options.depth;
    view.peer = options.peer;
    view.gets_need_dump = options.gets_need_dump;
    view.fetch_slots = options.fetch_slots;
    receives = receives_in(with_nic, options.receives, layout);
    in_process = options.pages == nullptr;
  }
};

SendQueue::SendQueue(std::unique_ptr<State> state) : state_(std::move(state)) {}
SendQueue::SendQueue(SendQueue&&) noexcept = default;
SendQueue& SendQueue::operator=(SendQueue&&) noexcept = default;
SendQueue::~SendQueue() = default;

Result<SendQueue> SendQueue::create(NicSoft& nic, const Options& options) {
  ORIEL_CHECK(check_options(options));
  auto state = std::make_unique<State>();
  state->nic = &nic;
  const Layout layout(options);
  ORIEL_CHECK(state->allocate(options, layout));
  ORIEL_CHECK(state->fill(options, layout));
  state->show(options, layout);

  ORIEL_CHECK(state->register_slots(options, layout));

  QueueSetup& setup = state->setup;
  setup.memory = state->memory;
  setup.number = options.number;
  setup.mode = options.mode;
  setup.first_index = options.base;
  setup.answer_timeout = options.answer_timeout;
  setup.retransmissions_most = options.retransmissions_most;
  setup.piece_bytes = options.piece_bytes;
  setup.records = options.records;
  setup.aliases = options.aliases;
  setup.answered = &state->answered;
  if (options.records != nullptr) options.records->completed = options.base;
  ORIEL_TRY(state->number, nic.create_queue(setup));
  state->view.number = state->number;
  return SendQueue(std::move(state));
}

std::uint32_t SendQueue::number() const {
  return state_->number;
}

Status SendQueue::connect(const QueuePeer& peer) {
  return state_->nic->connect(state_->number, peer);
}

const dq::QueueView& SendQueue::view() const {
  return state_->view;
}

const QueueMemory& SendQueue::memory() const {
  return state_->memory;
}

const QueueSetup& SendQueue::setup() const {
  return state_->setup;
}

const MemoryRange& SendQueue::fetch_slots() const {
  return state_->slots;
}

TimePoint SendQueue::answered() const {
  return state_->answered.load(std::memory_order_relaxed);
}

Status SendQueue::refuse_posts() {
  if (state_->in_process) {
    dq::detail::give_up<device::Memory>(state_->view);
    return {};
  }
  const std::uint32_t broken = 1;
  const auto* const word = reinterpret_cast<const std::byte*>(&state_->view.indexes->broken);
  const auto at = word - state_->near->user();
  return state_->near->write(static_cast<std::size_t>(at), std::as_bytes(std::span(&broken, 1)));
}

const dq::ReceiveView& SendQueue::receives() const {
  return state_->receives;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/flight_recorder.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "comm/request/call_text.hpp"

namespace oriel::comm {
namespace {

std::uint64_t word_of(const void* stream) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream));
}

std::uint64_t packed(FlightKind kind, const kernels::CollectiveCall& call) {
  return std::uint64_t{static_cast<std::uint32_t>(call.root)} << 32 |
         static_cast<std::uint64_t>(kind) << 24 |
         static_cast<std::uint64_t>(call.collective) << 16 |
         static_cast<std::uint64_t>(call.type) << 8 | static_cast<std::uint64_t>(call.op);
}

}  // namespace

FlightRecorder::FlightRecorder(FlightFacts facts)
    : facts_(std::move(facts)),
      started_(SteadyClock::instance().now()),
      started_ticks_(ticks()),
      slots_(std::make_unique<Slot[]>(kRecords)),
      messages_(2 * static_cast<std::size_t>(facts_.size)) {}

void FlightRecorder::note(FlightKind kind, const kernels::CollectiveCall& call,
                          std::uint64_t number, const void* stream, std::uint64_t now,
                          std::uint64_t mark) {
  const std::uint64_t position = next_.load(std::memory_order_relaxed);
  Slot& slot = slots_[position % kRecords];
  slot.version.store(2 * position + 1, std::memory_order_relaxed);
  // Stores with release, so that a reader that sees one of these values also sees the new version.
  slot.what.store(packed(kind, call), std::memory_order_release);
  slot.count.store(call.count, std::memory_order_release);
  slot.number.store(number, std::memory_order_release);
  slot.group.store(groups_, std::memory_order_release);
  slot.stream.store(word_of(stream), std::memory_order_release);
  slot.enqueued.store(now, std::memory_order_release);
  slot.end.store(mark, std::memory_order_release);
  slot.version.store(2 * position + 2, std::memory_order_release);
  next_.store(position + 1, std::memory_order_release);
}

void FlightRecorder::enter(const kernels::CollectiveCall& call, const void* stream,
                           std::uint64_t mark) {
  entered_ = next_.load(std::memory_order_relaxed);
  ++groups_;
  note(FlightKind::collective, call, ++collectives_, stream, time_or(0), mark);
  begin({.kind = CallActivity::Kind::collective});
}

void FlightRecorder::enter(std::span<const PointToPointRequest> requests, std::uint64_t mark) {
  entered_ = next_.load(std::memory_order_relaxed);
  ++groups_;
  const std::uint64_t now = time_or(0);
  PointToPointCounts counts;
  for (const PointToPointRequest& request : requests) {
    const int place = request.is_send ? request.peer : facts_.size + request.peer;
    note(request.is_send ? FlightKind::send : FlightKind::receive,
         {.type = request.type, .count = request.count, .root = request.peer},
         ++messages_[static_cast<std::size_t>(place)], request.stream, now, mark);
    ++(request.is_send ? counts.sends : counts.receives);
  }
  const int peer = requests.size() == 1 ? requests.front().peer : -1;
  begin({CallActivity::Kind::transfers, counts, peer});
}

void FlightRecorder::leave(bool completed) {
  begin({});
  if (!completed) return;
  const std::uint64_t now = time_or(1);
  const std::uint64_t next = next_.load(std::memory_order_relaxed);
  const std::uint64_t kept = next < kRecords ? 0 : next - kRecords;
  for (std::uint64_t position = std::max(entered_, kept); position < next; ++position) {
    slots_[position % kRecords].end.store(now, std::memory_order_release);
  }
}

std::optional<FlightRecord> FlightRecorder::read(std::uint64_t position) const {
  const Slot& slot = slots_[position % kRecords];
  const auto get = [](const Word& word) { return word.load(std::memory_order_acquire); };
  if (get(slot.version) != 2 * position + 2) return std::nullopt;
  const std::uint64_t what = get(slot.what);
  const auto byte = [&](int place) { return static_cast<std::uint8_t>(what >> place); };
  FlightRecord record;
  record.kind = static_cast<FlightKind>(byte(24));
  record.call = {static_cast<kernels::Collective>(byte(16)), static_cast<DataType>(byte(8)),
                 static_cast<ReduceOp>(byte(0)), get(slot.count),
                 static_cast<std::int32_t>(what >> 32)};
  record.number = get(slot.number);
  record.group = get(slot.group);
  record.stream = get(slot.stream);
  record.enqueued = get(slot.enqueued);
  (facts_.on_host ? record.ended : record.mark) = get(slot.end);
  if (slot.version.load(std::memory_order_relaxed) != 2 * position + 2) return std::nullopt;
  return record;
}

std::vector<FlightRecord> FlightRecorder::records() const {
  const std::uint64_t next = next_.load(std::memory_order_acquire);
  std::vector<FlightRecord> found;
  for (std::uint64_t at = next < kRecords ? 0 : next - kRecords; at < next; ++at) {
    if (const auto record = read(at)) found.push_back(*record);
  }
  return found;
}

std::optional<FlightRecord> FlightRecorder::last() const {
  const std::uint64_t next = next_.load(std::memory_order_acquire);
  return next > 0 ? read(next - 1) : std::nullopt;
}

std::string FlightRecorder::enqueued_text() const {
  const auto record = last();
  if (!record) return {};
  const bool is_collective = record->kind == FlightKind::collective;
  return fmt::format("number {}, is {}", record->group,
                     is_collective ? text_of(record->call) : text_of(activity()));
}

}  // namespace oriel::comm

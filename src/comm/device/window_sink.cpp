// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/window_sink.hpp"

#include <bit>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::comm {

std::size_t PooledWindowSink::table_bytes(int world_size) {
  return std::bit_ceil(static_cast<std::size_t>(world_size) * sizeof(std::int32_t));
}

Result<std::unique_ptr<PooledWindowSink>> PooledWindowSink::make(
    std::shared_ptr<shadow::ShadowPool> windows, std::shared_ptr<shadow::ShadowPool> tables,
    const TeamFacts& facts) {
  std::unique_ptr<PooledWindowSink> sink(
      new PooledWindowSink(std::move(windows), std::move(tables), facts));
  std::vector<std::int32_t> indices(static_cast<std::size_t>(facts.world_size), -1);
  for (std::size_t i = 0; i < facts.members.size(); ++i) {
    indices[static_cast<std::size_t>(facts.members[i])] = static_cast<std::int32_t>(i);
  }
  ORIEL_TRY(sink->lsa_index_of_, sink->tables_->allocate(std::as_bytes(std::span(indices))));
  return sink;
}

PooledWindowSink::~PooledWindowSink() {
  if (lsa_index_of_ != nullptr) static_cast<void>(tables_->free(lsa_index_of_));
}

Result<void*> PooledWindowSink::create(const window::WindowFacts& facts) {
  device::WindowObject object{};
  object.flat_base = reinterpret_cast<char*>(facts.window.flat_base);
  object.lsa_rank = facts_.index;
  object.world_rank = facts_.world_rank;
  object.stride_4g = static_cast<std::uint32_t>(facts.slot_bytes >> 32);
  object.magic = device::kWindowMagic;
  object.version = device::kWindowVersion;
  object.size_bytes = facts.window.bytes;
  object.world_size = facts_.world_size;
  object.lsa_size = static_cast<std::int32_t>(facts_.members.size());
  object.lsa_index_of = static_cast<const std::int32_t*>(lsa_index_of_);
  object.communicator = facts_.communicator;
  if (network_ == nullptr) {
    ORIEL_TRY(void* const made, windows_.allocate(object));
    return made;
  }
  ORIEL_TRY(object.network, network_->make_table(facts.window.serial));
  auto made = windows_.allocate(object);
  if (made.ok()) return static_cast<void*>(made.value());
  network_->drop_table(object.network);
  return std::move(made).error();
}

Status PooledWindowSink::flush() {
  ORIEL_CHECK(tables_->flush());
  return windows_.flush();
}

void PooledWindowSink::destroy(void* handle) noexcept {
  const device::NetworkWindow* const table = network_ != nullptr ? view(handle).network : nullptr;
  const Status freed = windows_.free(static_cast<device::WindowObject*>(handle));
  if (network_ != nullptr) network_->drop_table(table);
  if (!freed.ok()) Log(facts_.world_rank).warn("{}", freed.error().to_string());
}

device::WindowView PooledWindowSink::view(const void* handle) const {
  return device::WindowView::of(windows_.find(static_cast<const device::WindowObject*>(handle)));
}

}  // namespace oriel::comm

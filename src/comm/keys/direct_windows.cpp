// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/direct_windows.hpp"

#include <utility>
#include <variant>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

/// Returns the number by which a NIC identifies a rank whose memory is mapped.
std::uint64_t process_of(int rank) {
  return static_cast<std::uint64_t>(rank) + 1;
}

}  // namespace

WindowExport export_window(window::Memory& memory, const std::byte* user, std::size_t bytes) {
  WindowExport made;
  // Returns an empty export if the window cannot be exported or lies in several allocations: peers
  // then use the wire.
  auto segments = memory.find_segments(user, bytes);
  if (!segments.ok() || segments->size() != 1) return made;
  const window::Segment& segment = segments->front();
  auto handle = memory.export_handle(*segment.allocation);
  if (!handle.ok()) return made;
  auto* const descriptor = std::get_if<OwnedFd>(&handle.value());
  if (descriptor == nullptr) return made;
  made.descriptor = std::move(*descriptor);
  made.source.memory_bytes = segment.bytes;
  made.source.offset = static_cast<std::uint64_t>(user - segment.base);
  made.source.process = segment.allocation->id().process;
  made.source.serial = segment.allocation->id().serial;
  return made;
}

Status show_window(const NicView& view, const std::byte* user, std::size_t bytes,
                   std::vector<const std::byte*>& shown) {
  if (view.process == nullptr) return {};
  ORIEL_TRY(const auto segments, view.memory->find_segments(user, bytes));
  for (const window::Segment& segment : segments) {
    ORIEL_TRY(window::ShareableHandle handle, view.memory->export_handle(*segment.allocation));
    net::AllocationHandle passed;
    if (auto* const descriptor = std::get_if<OwnedFd>(&handle)) {
      passed = std::move(*descriptor);
    } else {
      passed = std::get<window::FabricHandle>(handle);
    }
    ORIEL_CHECK(view.process->show(segment.base, segment.bytes, std::move(passed)));
    shown.push_back(segment.base);
  }
  return {};
}

void hide_window(const NicView& view, std::vector<const std::byte*>& shown) noexcept {
  for (const std::byte* const base : shown) view.process->hide(base);
  shown.clear();
}

Result<PeerMapping> PeerMapping::make(window::Memory& memory, OwnedFd descriptor,
                                      const WindowKey& key, const NicView& view) {
  const WindowSource& source = key.source;
  OwnedFd copy;
  if (view.process != nullptr) {
    copy = OwnedFd(sys().fcntl_int(descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return system_error("duplicating a window's descriptor");
  }
  ORIEL_TRY(auto allocation,
            memory.import_handle(window::ShareableHandle(std::move(descriptor)),
                                 {source.process, source.serial}, source.memory_bytes));
  ORIEL_TRY(auto range, memory.reserve(source.memory_bytes, memory.granularity()));
  ORIEL_TRY(auto mapping, memory.map(*range, range->base(), std::move(allocation)));
  PeerMapping made(std::move(range), std::move(mapping), source.offset, view);
  if (view.process == nullptr) return made;
  ORIEL_CHECK(view.process->show(made.mapping_->base(), source.memory_bytes, std::move(copy)));
  made.shown_.push_back(made.mapping_->base());
  return made;
}

bool DirectWindows::is_ready() const {
  return path_ && (path_->exchange == nullptr || path_->exchange->connected());
}

void DirectWindows::make_export(DirectWindow& window, std::uint64_t address, std::uint64_t bytes) {
  if (!path_ || path_->exchange == nullptr) return;
  window.exported =
      export_window(*path_->memory, reinterpret_cast<const std::byte*>(address), bytes);
}

Status DirectWindows::add_descriptors(DirectWindow& window,
                                      std::vector<std::vector<OwnedFd>>& outgoing) {
  if (!window.exported.descriptor) return {};
  for (std::size_t rank = 0; rank < outgoing.size(); ++rank) {
    if (!path_->peers[rank]) continue;
    OwnedFd copy(sys().fcntl_int(window.exported.descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return system_error("duplicating a window's descriptor");
    outgoing[rank].push_back(std::move(copy));
  }
  window.exported.descriptor.reset();
  window.is_reached = true;
  return {};
}

Task<Result<std::vector<std::vector<OwnedFd>>>> DirectWindows::exchange(
    EventLoop& loop, std::vector<std::vector<OwnedFd>> outgoing,
    const std::vector<KeysMessage>& ranks, Status local, Deadline deadline) {
  if (!local.ok()) {
    path_->exchange->disconnect();
    co_return std::move(local).error();
  }
  std::vector<std::size_t> counts(ranks.size(), 0);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!path_->peers[rank]) continue;
    for (const WindowKey& key : ranks[rank].keys) counts[rank] += key.source.memory_bytes != 0;
  }
  co_return co_await path_->exchange->exchange_each(loop, std::move(outgoing), std::move(counts),
                                                    deadline);
}

Status DirectWindows::map(DirectWindow& window, int peer, const WindowKey& key, OwnedFd descriptor,
                          WindowNic& nic, const NicView& view, net::MemoryPlace place) {
  auto made = PeerMapping::make(*path_->memory, std::move(descriptor), key, view);
  if (!made.ok()) {
    return std::move(made).error().with_context(
        fmt::format("mapping a window of rank {} for copies", peer));
  }
  net::MemoryRange range{key.address, key.bytes, made->data(), kWindowAccess};
  range.place = place;
  ORIEL_CHECK(nic.map_peer_memory(process_of(peer), key.key, range));
  window.mapped.emplace(peer, std::pair(key.key, std::move(made).value()));
  return {};
}

void DirectWindows::finish(DirectWindow& window, WindowNic& nic, std::uint32_t key) noexcept {
  window.exported.descriptor.reset();
  for (const auto& [rank, mapped] : window.mapped) {
    if (window.is_reached) nic.set_reached(process_of(rank), key);
  }
}

void DirectWindows::unmap(DirectWindow& window, WindowNic& nic) noexcept {
  for (const auto& [rank, mapped] : window.mapped) {
    nic.unmap_peer_memory(process_of(rank), mapped.first);
  }
  window.mapped.clear();
  window.is_reached = false;
}

}  // namespace oriel::comm

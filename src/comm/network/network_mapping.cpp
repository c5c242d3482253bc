// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_mapping.hpp"

#include <utility>
#include <variant>

#include <fcntl.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::comm {

WindowExport export_window(window::Memory& memory, const std::byte* user, std::size_t bytes) {
  WindowExport made;
  // Where it cannot be exported, or lies in several allocations, its bytes go by the wire.
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

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network_mapping.hpp"

#include <utility>
#include <variant>

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

Result<PeerMapping> PeerMapping::make(window::Memory& memory, OwnedFd descriptor,
                                      const WindowKey& key) {
  const WindowSource& source = key.source;
  ORIEL_TRY(auto allocation,
            memory.import_handle(window::ShareableHandle(std::move(descriptor)),
                                 {source.process, source.serial}, source.memory_bytes));
  ORIEL_TRY(auto range, memory.reserve(source.memory_bytes, memory.granularity()));
  ORIEL_TRY(auto mapping, memory.map(*range, range->base(), std::move(allocation)));
  return PeerMapping(std::move(range), std::move(mapping), source.offset);
}

}  // namespace oriel::comm

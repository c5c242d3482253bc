// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/landings.hpp"

#include <cstring>
#include <utility>

#include "net/queue/byte_order.hpp"

namespace oriel::net {
namespace {

/// Returns the old value in an adapter's byte order: 8 bytes as on the host, 4 bytes as on the
/// wire.
Bytes old_value(const WireResponse& response, std::uint8_t bytes) {
  Bytes old(bytes);
  if (bytes == 4) {
    store_big32(old.data(), static_cast<std::uint32_t>(response.old_value));
  } else {
    std::memcpy(old.data(), &response.old_value, 8);
  }
  return old;
}

}  // namespace

void Landings::land(PostedWqe& wqe, const SentRequest& request, WireResponse& response) {
  const WorkRequest& work = wqe.work;
  Payload bytes = std::move(response.payload);
  if (work.kind == WorkKind::atomic) {
    bytes = old_value(response, work.atomic.bytes);
  } else if (bytes.size() != (wqe.direct ? 0 : request.bytes)) {
    return posted_.stop_at(wqe, Syndrome::remote_operation, Complaint::data_length);
  }
  const auto found = end_.find_local(work, true);
  if (found.syndrome != Syndrome::none) return posted_.stop_at(wqe, found.syndrome);
  if (request.bytes == 0) return posted_.end_piece(wqe);
  const bool may_begin = landings_.empty() || landings_.back().started;
  Landing& landing = landings_.emplace_back();
  landing.serial = request.serial;
  landing.offset = request.offset;
  landing.bytes = request.bytes;
  landing.storing = Storing(std::move(bytes));
  if (may_begin && !wqe.done) begin(landing, wqe);
  // The rest of the payload is borrowed from the wire, which reuses the memory: copy it.
  landing.storing.own();
}

void Landings::begin(Landing& landing, PostedWqe& wqe) {
  const auto found = end_.find_local(wqe.work, true);
  if (found.syndrome != Syndrome::none) return posted_.stop_at(wqe, found.syndrome);
  landing.place = found.place;
  CopyEngine& engine = end_.nic.engine(found.place);
  std::byte* const to = found.memory + landing.offset;
  if (!wqe.direct) {
    landing.started = landing.storing.begin(engine, to);
    landing.ticket = landing.storing.ticket();
    return;
  }
  const auto source = end_.find_mapped(wqe.work);
  // The source was mapped when the WQE started, and may have been unmapped since.
  if (source.syndrome != Syndrome::none) return posted_.stop_at(wqe, source.syndrome);
  landing.started = engine.copy(to, source.memory + landing.offset, landing.bytes, landing.ticket);
}

bool Landings::progress() {
  bool any = false;
  for (auto it = landings_.begin(); it != landings_.end();) {
    PostedWqe& wqe = posted_.of(it->serial);
    if (!it->started && !wqe.done) begin(*it, wqe);
    CopyEngine& engine = end_.nic.engine(it->place);
    if (engine.has_failed()) {
      posted_.stop_at(wqe, Syndrome::local_operation, Complaint::no_copies);
    }
    const bool landed = it->started && engine.is_done(it->ticket);
    if (!landed && !wqe.done) {
      ++it;
      continue;
    }
    if (!wqe.done) posted_.end_piece(wqe);
    it = landings_.erase(it);
    any = true;
  }
  return any;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/queue_ends.hpp"

namespace oriel::net {
namespace {

Access right_for(WorkKind kind) {
  if (kind == WorkKind::write) return kRemoteWrite;
  return kind == WorkKind::read ? kRemoteRead : kRemoteAtomic;
}

// Returns whether the fields are consistent; a wire delivers whatever its other end sends.
bool is_sound(const WireRequest& request) {
  switch (request.kind) {
    case WorkKind::write:
      if (request.direct && request.source.has_value()) return false;
      if (request.payload.size() !=
          (request.direct || request.source.has_value() ? 0 : request.piece_bytes)) {
        return false;
      }
      break;
    case WorkKind::read:
      if (!request.payload.empty() || request.source.has_value()) return false;
      break;
    case WorkKind::atomic:
      if (request.source.has_value()) return false;
      if (request.atomic.bytes != 4 && request.atomic.bytes != 8) return false;
      if (request.bytes != request.atomic.bytes || request.offset != 0) return false;
      break;
    default:
      return false;
  }
  return request.offset <= request.bytes && request.piece_bytes <= kPieceBytesMost &&
         request.piece_bytes <= request.bytes - request.offset;
}

}  // namespace

MemoryKeys::Found ReceiveEnd::find(const WireRequest& request) const {
  return nic.keys.find_remote(request.key, request.address, request.bytes, right_for(request.kind));
}

Syndrome ReceiveEnd::check(const WireRequest& request) const {
  if (!is_sound(request)) return Syndrome::remote_invalid;
  if (request.kind == WorkKind::atomic && request.address % request.atomic.bytes != 0) {
    return Syndrome::remote_invalid;
  }
  return find(request).syndrome;
}

bool ReceiveEnd::can_reach(const WireRequest& request) const {
  if (request.kind != WorkKind::write) return true;
  const MemoryPlace place = find(request).place;
  if (request.direct) {
    const auto source = find_source(request);
    return source.syndrome == Syndrome::none && source.place == place;
  }
  if (!request.source.has_value()) return true;
  return setup.records == nullptr && request.piece_bytes != 0 && place == MemoryPlace::host &&
         wire().can_read(peer.address);
}

WireResponse ReceiveEnd::response_to(const WireRequest& request) const {
  WireResponse response;
  response.to_queue = peer.queue;
  response.epoch = peer.epoch;
  response.number = request.number;
  return response;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_handle.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kHandleMagic = 0x3171786d;  // "mxq1": name and version of the format
constexpr std::uint32_t k24Bits = 0xffffff;
constexpr std::uint32_t kLidMost = 0xbfff;  // larger LIDs are multicast

Error refuse(const char* field, std::uint64_t value) {
  return Error(ErrorCode::remote,
               fmt::format("a peer's queue handle has {} {:#x}, which cannot be", field, value));
}

Status check(const Mlx5QueueHandle& handle, std::uint8_t layer) {
  if (handle.number == 0 || handle.number > k24Bits) return refuse("number", handle.number);
  if (handle.psn > k24Bits) return refuse("packet number", handle.psn);
  if (layer != 1 && layer != 2) return refuse("link layer", layer);
  if (handle.mtu < 1 || handle.mtu > 5) return refuse("mtu", handle.mtu);
  if (handle.log_reads_answered > 7) return refuse("reads", handle.log_reads_answered);
  const bool ethernet = handle.link_layer == LinkLayer::ethernet;
  const bool good_version =
      ethernet ? handle.roce_version == 1 || handle.roce_version == 2 : handle.roce_version == 0;
  if (!good_version) return refuse("RoCE version", handle.roce_version);
  if (!ethernet && (handle.lid == 0 || handle.lid > kLidMost)) return refuse("lid", handle.lid);
  const bool no_gid = std::all_of(handle.gid.begin(), handle.gid.end(),
                                  [](std::uint8_t byte) { return byte == 0; });
  if (ethernet && no_gid) return refuse("GID", 0);
  return {};
}

}  // namespace

Bytes encode_handle(const Mlx5QueueHandle& handle) {
  ByteWriter writer;
  writer.put(kHandleMagic)
      .put(handle.number)
      .put(handle.psn)
      .put(handle.link_layer)
      .put(handle.mtu);
  writer.put(handle.log_reads_answered).put(handle.roce_version).put(handle.lid);
  writer.put(std::uint16_t{0}).put_raw(std::as_bytes(std::span(handle.gid)));
  return writer.take();
}

Result<Mlx5QueueHandle> parse_handle(ByteView bytes) {
  ByteReader reader(bytes);
  Mlx5QueueHandle handle;
  const auto magic = reader.get<std::uint32_t>();
  handle.number = reader.get<std::uint32_t>();
  handle.psn = reader.get<std::uint32_t>();
  const auto layer = reader.get<std::uint8_t>();
  handle.mtu = reader.get<std::uint8_t>();
  handle.log_reads_answered = reader.get<std::uint8_t>();
  handle.roce_version = reader.get<std::uint8_t>();
  handle.lid = reader.get<std::uint16_t>();
  const auto padding = reader.get<std::uint16_t>();
  const ByteView gid = reader.get_raw(handle.gid.size());
  ORIEL_CHECK(reader.finish("a peer's queue handle"));
  std::transform(gid.begin(), gid.end(), handle.gid.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  if (magic != kHandleMagic) return refuse("magic number", magic);
  if (padding != 0) return refuse("padding", padding);
  handle.link_layer = layer == 2 ? LinkLayer::ethernet : LinkLayer::infiniband;
  ORIEL_CHECK(check(handle, layer));
  return handle;
}

Bytes encode_handles(std::span<const std::vector<Mlx5QueueHandle>> of_members) {
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(of_members.size()));
  for (const std::vector<Mlx5QueueHandle>& handles : of_members) {
    writer.put(static_cast<std::uint32_t>(handles.size()));
    for (const Mlx5QueueHandle& handle : handles) writer.put_raw(encode_handle(handle));
  }
  return writer.take();
}

Result<std::vector<Mlx5QueueHandle>> parse_handles(ByteView bytes, std::size_t members,
                                                   std::size_t member) {
  ByteReader reader(bytes);
  const auto reported = reader.get<std::uint32_t>();
  if (reported != members) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer has queues for {} members, of {}", reported, members));
  }
  std::vector<Mlx5QueueHandle> found;
  for (std::size_t i = 0; i < members && reader.good(); ++i) {
    const auto count = reader.get<std::uint32_t>();
    if (count > reader.left() / kMlx5HandleBytes) {
      return Error(ErrorCode::remote,
                   fmt::format("a peer announces {} queues in {} bytes", count, reader.left()));
    }
    for (std::uint32_t k = 0; k < count; ++k) {
      ORIEL_TRY(const Mlx5QueueHandle handle, parse_handle(reader.get_raw(kMlx5HandleBytes)));
      if (i == member) found.push_back(handle);
    }
  }
  ORIEL_CHECK(reader.finish("a peer's queue handles"));
  return found;
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/frame.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {

Bytes encode_frame(FrameKind kind, ByteView payload) {
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(payload.size())).put(kind);
  writer.put(std::uint8_t{0}).put(std::uint16_t{0}).put_raw(payload);
  return writer.take();
}

Status FrameReader::feed(ByteView bytes, std::vector<Frame>& out) {
  while (!bytes.empty()) {
    if (header_have_ < header_.size()) {
      const std::size_t take = std::min(header_.size() - header_have_, bytes.size());
      std::copy_n(bytes.begin(), take, header_.begin() + static_cast<std::ptrdiff_t>(header_have_));
      const bool complete = header_have_ + take == header_.size();
      if (complete) ORIEL_CHECK(check_header());
      header_have_ += take;
      bytes = bytes.subspan(take);
      if (!complete) return {};
    }
    const std::size_t take = std::min(length_ - frame_.payload.size(), bytes.size());
    frame_.payload.insert(frame_.payload.end(), bytes.begin(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(take));
    bytes = bytes.subspan(take);
    if (frame_.payload.size() == length_) {
      out.push_back(std::move(frame_));
      frame_ = {};
      header_have_ = 0;
    }
  }
  return {};
}

Status FrameReader::check_header() {
  ByteReader reader(header_);
  length_ = reader.get<std::uint32_t>();
  const auto kind = reader.get<std::uint8_t>();
  const auto reserved8 = reader.get<std::uint8_t>();
  const auto reserved16 = reader.get<std::uint16_t>();
  const bool known = kind >= static_cast<std::uint8_t>(FrameKind::message) &&
                     kind <= static_cast<std::uint8_t>(FrameKind::note);
  if (!known || reserved8 != 0 || reserved16 != 0) {
    return Error(ErrorCode::remote, fmt::format("a frame of unknown kind {} arrived", kind));
  }
  frame_.kind = static_cast<FrameKind>(kind);
  const std::size_t limit = frame_.kind == FrameKind::message ? kMaxMessageBytes : kMaxNoticeBytes;
  if (length_ > limit) {
    return Error(ErrorCode::remote,
                 fmt::format("a frame of {} bytes arrived; the limit is {}", length_, limit));
  }
  return {};
}

}  // namespace oriel::boot

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/split_message.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/link/vote_record.hpp"

namespace oriel::boot {

Bytes encode(const SplitPlace& place) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(place.color.has_value()));
  writer.put(place.color.value_or(0)).put(place.key).put(place.serial);
  writer.put(static_cast<std::uint8_t>(place.address.valid()));
  if (place.address.valid()) place.address.encode(writer);
  return writer.take();
}

Result<SplitPlace> decode_split_place(ByteView bytes) {
  ByteReader reader(bytes);
  const auto has_color = reader.get<std::uint8_t>();
  const auto color = reader.get<std::int32_t>();
  SplitPlace place;
  place.key = reader.get<std::int32_t>();
  place.serial = reader.get<std::uint64_t>();
  const auto listens = reader.get<std::uint8_t>();
  if (reader.good() && listens == 1) {
    ORIEL_TRY(place.address, SocketAddress::decode(reader));
  }
  ORIEL_CHECK(reader.finish("a rank's place in a split"));
  if (has_color > 1 || listens > 1 || (has_color == 0 && color != 0)) {
    return Error(ErrorCode::remote,
                 fmt::format("a rank's place in a split is malformed (has a color: {}, color {}, "
                             "listens: {})",
                             has_color, color, listens));
  }
  if (has_color == 1) place.color = color;
  return place;
}

Bytes encode(const SplitFailure& failure) {
  ByteWriter writer;
  writer.put(failure.child);
  ErrorRecord::encode(writer, failure.reason);
  return writer.take();
}

Result<SplitFailure> decode_split_failure(ByteView bytes) {
  ByteReader reader(bytes);
  const auto child = reader.get<std::uint64_t>();
  std::optional<Error> reason;
  ORIEL_CHECK(ErrorRecord::decode(reader, reason));
  ORIEL_CHECK(reader.finish("a note of a split"));
  return SplitFailure{child, std::move(*reason)};
}

}  // namespace oriel::boot

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "comm/request/flight_recorder.hpp"
#include "kernels/plan/call_record.hpp"

namespace oriel::comm {

/// The last call that a rank has made, as it tells another one.
struct ToldCall {
  /// Whether it goes on. GPU ranks do not know.
  enum class State : std::uint8_t { unknown = 0, goes_on = 1, has_returned = 2 };
  std::uint64_t number = 0;  ///< of the call or group, from 1; 0: it has made none
  State state = State::unknown;
  FlightKind kind = FlightKind::collective;
  kernels::CollectiveCall call{};  ///< as in a FlightRecord
};
Bytes encode(const ToldCall& call);
/// ErrorCode::remote if it is malformed, or names something that does not exist.
Result<ToldCall> decode_told_call(ByteView bytes);
/// Returns "has made no call", "has made call 3 last, a broadcast of 7 x u8 with root 2, which has
/// returned".
std::string text_of(const ToldCall& call);

}  // namespace oriel::comm

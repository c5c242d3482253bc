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

/// Last call of a rank, as sent to another rank.
struct ReportedCall {
  /// State of the call; always unknown for GPU ranks.
  enum class State : std::uint8_t { unknown = 0, goes_on = 1, has_returned = 2 };
  std::uint64_t number = 0;  ///< number of the call or group, from 1; 0: no call yet
  State state = State::unknown;
  FlightKind kind = FlightKind::collective;
  kernels::CollectiveCall call{};  ///< like FlightRecord::call
};
Bytes encode(const ReportedCall& call);
/// Returns ErrorCode::remote if the message is malformed or an enumerator is unknown.
Result<ReportedCall> decode_reported_call(ByteView bytes);
/// Returns "has made no call", "has made call 3 last, a broadcast of 7 x u8 with root 2, which has
/// returned".
std::string text_of(const ReportedCall& call);

}  // namespace oriel::comm

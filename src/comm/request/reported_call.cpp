// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/reported_call.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/request/call_text.hpp"

namespace oriel::comm {

Bytes encode(const ReportedCall& call) {
  ByteWriter to;
  to.put(call.number).put(call.state).put(call.kind);
  to.put(call.call.collective).put(call.call.type).put(call.call.op);
  to.put(call.call.count).put(static_cast<std::int32_t>(call.call.root));
  return to.take();
}

Result<ReportedCall> decode_reported_call(ByteView bytes) {
  ByteReader reader(bytes);
  ReportedCall reported;
  reported.number = reader.get<std::uint64_t>();
  const auto state = reader.get<std::uint8_t>();
  const auto kind = reader.get<std::uint8_t>();
  const auto collective = reader.get<std::uint8_t>();
  const auto type = reader.get<std::uint8_t>();
  const auto op = reader.get<std::uint8_t>();
  reported.call.count = reader.get<std::uint64_t>();
  reported.call.root = reader.get<std::int32_t>();
  ORIEL_CHECK(reader.finish("the call of a rank that is waited for"));
  const bool is_known = state <= static_cast<std::uint8_t>(ReportedCall::State::has_returned) &&
                        kind <= static_cast<std::uint8_t>(FlightKind::receive) &&
                        collective < kernels::kCollectiveCount && type < kDataTypeCount &&
                        op < kReduceOpCount;
  if (!is_known) {
    return Error(ErrorCode::remote,
                 fmt::format("a call in state {} of kind {}, collective {}, type {}, operation {}",
                             state, kind, collective, type, op));
  }
  reported.state = static_cast<ReportedCall::State>(state);
  reported.kind = static_cast<FlightKind>(kind);
  reported.call.collective = static_cast<kernels::Collective>(collective);
  reported.call.type = static_cast<DataType>(type);
  reported.call.op = static_cast<ReduceOp>(op);
  return reported;
}

std::string text_of(const ReportedCall& call) {
  if (call.number == 0) return "has made no call";
  std::string what = text_of(call.call);
  if (call.kind != FlightKind::collective) {
    const bool is_send = call.kind == FlightKind::send;
    what =
        fmt::format("{} of {} x {} {} rank {}", is_send ? "a send" : "a receive", call.call.count,
                    name_of(call.call.type), is_send ? "to" : "from", call.call.root);
  }
  std::string text = fmt::format("has made call {} last, {}", call.number, what);
  if (call.state == ReportedCall::State::goes_on) text += ", in which it is";
  if (call.state == ReportedCall::State::has_returned) text += ", which has returned";
  return text;
}

}  // namespace oriel::comm

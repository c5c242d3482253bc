// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/stall_inquiry.hpp"

#include <cstdint>

#include <fmt/format.h>

#include "base/bytes.hpp"
#include "comm/request/flight_recorder.hpp"

namespace oriel::comm {
namespace {

/// First byte of a note.
enum class Inquiry : std::uint8_t { question = 1, answer = 2 };

}  // namespace

void StallInquiry::ask(int rank) {
  if (asked_ != rank) answer_.reset();
  asked_ = rank;
  ByteWriter question;
  question.put(Inquiry::question);
  static_cast<void>(
      parts_.session->peers().send_note(rank, question.take(), boot::NoteTopic::last_call));
}

void StallInquiry::serve() {
  auto& peers = parts_.session->peers();
  while (const auto note = peers.take_note(boot::NoteTopic::last_call)) {
    const ByteView said(note->text);
    if (said.empty()) continue;
    const auto kind = static_cast<Inquiry>(said[0]);
    if (kind == Inquiry::question) {
      ByteWriter answer;
      answer.put(Inquiry::answer).put_raw(encode(own_call()));
      static_cast<void>(peers.send_note(note->from, answer.take(), boot::NoteTopic::last_call));
    } else if (kind == Inquiry::answer && asked_ == note->from) {
      const auto call = decode_reported_call(said.subspan(1));
      if (call.ok()) answer_ = call.value();
    }
  }
}

ReportedCall StallInquiry::own_call() const {
  const auto last = parts_.flight->last();
  if (!last) return {};
  ReportedCall reported{.number = last->group, .kind = last->kind, .call = last->call};
  if (on_host(parts_)) {
    reported.state =
        last->ended == 0 ? ReportedCall::State::goes_on : ReportedCall::State::has_returned;
  }
  return reported;
}

std::string StallInquiry::text_about(int rank) const {
  if (asked_ != rank) return {};
  return fmt::format("; rank {} {}", rank, answer_ ? text_of(*answer_) : "does not answer");
}

}  // namespace oriel::comm

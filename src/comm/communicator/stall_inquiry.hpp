// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "comm/communicator/communicator_parts.hpp"
#include "comm/request/reported_call.hpp"

namespace oriel::comm {

/// Asks a rank for which this rank has long waited for its last call, and answers other ranks.
/// Needed where memory does not show the calls: on GPUs and between LSA teams. Questions and
/// answers are notes, which may be lost. The monitor's thread only.
class StallInquiry {
 public:
  /// `parts` must outlive this object.
  explicit StallInquiry(const CommunicatorParts& parts) : parts_(parts) {}

  void ask(int rank);
  /// Answers the questions and keeps the answers that have arrived. Does not block.
  void serve();
  /// Forgets the question and its answer, which belong to an earlier wait or have been reported.
  void forget() {
    asked_.reset();
    answer_.reset();
  }
  /// Returns text like "; rank 1 has made no call" from the answer of that rank, or says that it
  /// does not answer. Empty if it was not asked.
  std::string text_about(int rank) const;

 private:
  ReportedCall own_call() const;

  const CommunicatorParts& parts_;
  std::optional<int> asked_;
  std::optional<ReportedCall> answer_;  // answer of that rank
};

}  // namespace oriel::comm

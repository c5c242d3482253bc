// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "comm/communicator/communicator_parts.hpp"
#include "comm/request/told_call.hpp"

namespace oriel::comm {

/// Asks a rank for which this one has long waited what it has called last, and answers other
/// ranks: where their memory does not tell, on GPUs and in other nodes. By notes, which may be
/// lost. The monitor's thread only.
class StallInquiry {
 public:
  /// `parts` must outlive this.
  explicit StallInquiry(const CommunicatorParts& parts) : parts_(parts) {}

  void ask(int rank);
  /// Answers what has been asked, and keeps what has been answered. Does not wait.
  void serve();
  /// Forgets what was asked and answered: of an earlier wait, or told already.
  void forget() {
    asked_.reset();
    answer_.reset();
  }
  /// Returns "; rank 1 has made no call" by what that rank has answered, or says that it does not
  /// answer. Empty if it has not been asked.
  std::string text_about(int rank) const;

 private:
  ToldCall own_call() const;

  const CommunicatorParts& parts_;
  std::optional<int> asked_;
  std::optional<ToldCall> answer_;  // of the rank that was asked
};

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/queue/completion_writer.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// Reports complete WQEs and the first error to producers. The word of the first error is stored
/// before the error's completion.
class SendCompletions {
 public:
  /// `name` is the queue's number in completions.
  SendCompletions(const QueueSetup& setup, std::uint32_t name);

  void write(const WorkRequest& work, TimePoint now);
  void write_error(const WorkRequest& work, Syndrome syndrome, Complaint complaint);

 private:
  void store_first_error(const CompletionRecord& record);

  const QueueSetup& setup_;
  const std::uint32_t name_;
  CompletionWriter completions_;
  bool has_error_word_ = false;
  bool is_of_probe_ = false;  // the first error is a probe's, and no error of a WQE has followed
};

}  // namespace oriel::net

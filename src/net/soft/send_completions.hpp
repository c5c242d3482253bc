// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/queue/completion_writer.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// Tells producers which of their entries are complete, and of the first error, whose word is
/// stored before its completion.
class SendCompletions {
 public:
  /// `name`: of the queue, in completions.
  SendCompletions(const QueueSetup& setup, std::uint32_t name);

  void write(const WorkRequest& work, TimePoint now);
  void write_error(const WorkRequest& work, Syndrome syndrome, Complaint complaint);

 private:
  void store_first_error(const CompletionRecord& record);

  const QueueSetup& setup_;
  const std::uint32_t name_;
  CompletionWriter completions_;
  bool has_error_word_ = false;
  bool is_of_probe_ = false;  // that error, and nothing else has been told of since
};

}  // namespace oriel::net

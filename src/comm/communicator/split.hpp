// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/session/session.hpp"
#include "comm/communicator/rank_communicator.hpp"

namespace oriel::comm {

/// Request of one rank in a split of its communicator.
struct SplitRequest {
  /// Ranks of one color form a communicator; a rank without a color takes part only in the
  /// exchange.
  std::optional<std::int32_t> color{};
  std::int32_t key = 0;  ///< orders the ranks of a color; equal keys are ordered by rank
  std::optional<CommunicatorOptions> options{};  ///< not set: the parent's, without its name
  /// Reason why this rank cannot take part: all ranks of the parent then get this error.
  std::optional<Error> refused{};
  /// Called with the session of the new communicator while it starts, so that another thread may
  /// abort it. Called with null before the session is destroyed.
  std::function<void(boot::Session*)> on_session{};
};

/// Makes a communicator of the parent's ranks of one color, on the parent's device; null for a rank
/// without a color. Collective over the parent, whose own state does not change. If a request or
/// the exchange fails, all ranks of the parent get the same error. If a later step fails, all ranks
/// of the color get the same error, whose origin is a rank number of the parent.
Task<Result<std::shared_ptr<Communicator>>> split(EventLoop& loop,
                                                  std::shared_ptr<Communicator> parent,
                                                  SplitRequest request);

}  // namespace oriel::comm

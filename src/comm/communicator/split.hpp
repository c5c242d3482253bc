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

/// What a rank asks for when its communicator is split.
struct SplitRequest {
  /// Ranks of one color form a communicator; a rank without one takes part only in the exchange.
  std::optional<std::int32_t> color{};
  std::int32_t key = 0;  ///< orders the ranks of a color; equal keys are ordered by rank
  std::optional<CommunicatorOptions> options{};  ///< not set: the parent's, without its name
  /// Reason why this rank cannot take part: all ranks of the parent then get this error.
  std::optional<Error> refused{};
  /// Called with the new communicator's session while it starts, so that another thread may abort
  /// it, and with null before the session goes.
  std::function<void(boot::Session*)> on_session{};
};

/// Makes a communicator of the parent's ranks of one color, on the parent's device; null for a rank
/// without a color. Collective over the parent, whose own state stays as it is. An error of a
/// request, or of what is exchanged, is the same on all ranks of the parent; an error of a later
/// step is the same on all ranks of the color, and its origin is a rank of the parent.
Task<Result<std::shared_ptr<Communicator>>> split(EventLoop& loop,
                                                  std::shared_ptr<Communicator> parent,
                                                  SplitRequest request);

}  // namespace oriel::comm

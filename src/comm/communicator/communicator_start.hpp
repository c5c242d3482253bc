// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/session/session.hpp"
#include "comm/communicator/communicator_parts.hpp"
#include "comm/communicator/failure_watch.hpp"
#include "comm/communicator/step_times.hpp"

namespace oriel::comm {

/// Returns which launches are ordered. ORIEL_GRAPH_MIXING_SUPPORT overrides options.graph_mixing.
GraphOrder graph_order(const Settings& settings, const CommunicatorOptions& options);

/// Returns whether this rank wants copy engines. ORIEL_CTA_POLICY overrides options.copy_engines.
bool wants_copy_engines(const Settings& settings, const CommunicatorOptions& options);

/// Returns a communicator's name and this rank, as in "as rank 1 of 4", for the log and errors.
std::string title_of(const CommunicatorOptions& options, int rank, int size);

/// Makes the parts of a communicator. Every step is collective and has the same outcome on all
/// ranks. If a step fails, the parts made so far are destroyed together with `parts`.
class CommunicatorStart {
 public:
  /// `parts` must have its device, settings and options. All arguments must outlive run().
  CommunicatorStart(EventLoop& loop, CommunicatorParts& parts, FailureWatch& failure,
                    Deadline deadline)
      : loop_(loop), parts_(parts), failure_(failure), deadline_(deadline) {}

  /// Runs the steps on a session whose links are established.
  Task<Status> run(std::unique_ptr<boot::Session> session, StepTimes& times);

 private:
  int rank() const { return parts_.session->rank(); }
  int size() const { return parts_.session->size(); }

  // The steps, in order.
  Task<Status> agree_on_topology();
  Task<Status> agree_on_choices();
  Task<Status> make_scratch();
  Task<Status> make_control_window();

  /// All-gathers facts for the topology and agrees on it. `first`: each rank sends its RankInfo.
  /// Otherwise each rank sends the `wanted` facts that the first exchange left open.
  Task<Status> exchange_places(topo::Wanted wanted, bool first);
  Task<Status> form_team();
  Status lay_out_scratch(int max_ctas);
  /// Copies the tables of both groupings to memory that kernels read.
  Result<shadow::OwnedShadow> copy_groupings() const;
  void log_start() const;

  EventLoop& loop_;
  CommunicatorParts& parts_;
  FailureWatch& failure_;
  Deadline deadline_;
};

}  // namespace oriel::comm

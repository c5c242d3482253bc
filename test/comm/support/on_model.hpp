// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <thread>

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/support/network_players.hpp"
#include "support/cuda/model_gpu.hpp"

namespace oriel::test {

/// A rank on its own GPU of the driver's model, whose streams run by and by.
struct OnModel {
  OnModel(int devices, int rank)
      : model(model_with_current_device(FakeCuda::Options{.devices = devices}, rank)),
        engine([this](const std::stop_token& stop) {
          constexpr int kIdleMost = 2000;  // then there is nothing to come for a while
          for (int idle = 0; !stop.stop_requested();) {
            idle = model.run_streams(2) == 0 ? idle + 1 : 0;
            if (idle > kIdleMost)
              std::this_thread::sleep_for(std::chrono::microseconds(200));
            else if (idle > 0)
              std::this_thread::yield();
          }
        }) {}
  ~OnModel() {
    engine = {};
    for (const std::string& violation : model.violations()) test::require(false, violation);
  }
  OnModel(const OnModel&) = delete;
  OnModel& operator=(const OnModel&) = delete;
  FakeCuda& model;
  std::jthread engine;
};

/// What a rank on a GPU does not show to its kernels.
inline comm::SoftNetwork& network_of(const Communicator& comm) {
  return dynamic_cast<comm::SoftNetwork&>(*must(comm::find_communicator(comm.handle()))->network());
}

/// Of a wait for a NIC's answer a third: enough on a machine that has much else to do.
inline const Variables kPatience = {{"ORIEL_COLLECTIVE_TIMEOUT", "9s"}};

/// Waits for a signal of `awaited`, of which it asks nothing, until `culprit` has been named.
inline void wait_until_named(Rank& rank, int awaited, int culprit) {
  require_outcome(device::wait_signal(device::Thread(), rank.view(), 0, 1, awaited),
                  device::WorldOutcome::aborted, "the wait");
  const auto error = error_of(rank.comm);
  require(error && error->origin_rank() == culprit, error ? error->to_string() : "no error");
  // By its silence, and not by the timeout of whoever waited for it.
  require(error->code() == ErrorCode::remote, error->to_string());
}

}  // namespace oriel::test

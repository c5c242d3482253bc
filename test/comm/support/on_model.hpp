// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <thread>

#include "comm/support/model_gpu.hpp"
#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"

namespace oriel::test {

/// A rank on its own GPU of the driver model, with a thread that advances the model's streams.
struct OnModel {
  OnModel(int devices, int rank)
      : model(model_with_current_device(FakeCuda::Options{.devices = devices}, rank)),
        engine([this](const std::stop_token& stop) {
          constexpr int kIdleMost = 2000;  // idle polls before the thread starts to sleep
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

/// Runs GPU ranks on these nodes. With `process`, each rank's NIC has a separate process that
/// copies, on its own driver model.
inline void run_on_model(const Nodes& nodes, const Variables& settings, bool process,
                         const Body& body) {
  INFO((process ? "copied by processes" : "copied by threads"));
  Variables all = {{"ORIEL_BACKEND", "cuda"},
                   {"ORIEL_NIC_PROCESS", process ? "1" : "0"},
                   {"ORIEL_NIC_PROGRAM", ORIEL_TEST_NIC_PROGRAM},
                   {"ORIEL_TEST_MODEL_DEVICES", std::to_string(nodes.ranks())}};
  all.insert(all.end(), settings.begin(), settings.end());
  run_on_nodes(nodes, all, [&](TestRanks& test_ranks) {
    const OnModel on_model(nodes.ranks(), test_ranks.first());
    body(test_ranks);
  });
}

/// A NIC may owe an answer for a third of this timeout: 3 s, enough on a busy machine.
inline const Variables kTimeout = {{"ORIEL_COLLECTIVE_TIMEOUT", "9s"}};

/// Waits for a signal from `awaited`, without any request to that rank, until the error names
/// `culprit`.
inline void wait_until_named(Rank& rank, int awaited, int culprit) {
  require_outcome(device::wait_signal(device::Thread(), rank.view(), 0, 1, awaited),
                  device::WorldOutcome::aborted, "the wait");
  require_silent(rank.comm, culprit);
}

}  // namespace oriel::test

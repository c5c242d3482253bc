// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-nic over the model of the driver, for tests; a thread runs the model's streams. If
// ORIEL_TEST_NIC_FAIL_AT is k, the k-th call of the driver fails.
#include <chrono>
#include <cstdlib>
#include <stop_token>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "net/process/nic_server_cuda.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"

int main() {
  using namespace oriel;
  const pid_t other = ::fork();
  if (other != 0) ::_exit(other < 0 ? 1 : 0);
  const char* const devices = std::getenv("ORIEL_TEST_MODEL_DEVICES");
  test::FakeCuda model(
      test::FakeCuda::Options{.devices = devices != nullptr ? std::atoi(devices) : 2});
  const std::jthread engine([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (model.run_streams(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  test::FaultPlan plan;
  const char* const fail_at = std::getenv("ORIEL_TEST_NIC_FAIL_AT");
  plan.fail_at = fail_at != nullptr ? std::atol(fail_at) : 0;
  plan.status = CUDA_ERROR_UNKNOWN;
  bool well = false;
  {
    const test::CudaFaultHooks hooks;
    const test::ScopedCudaFaults faults(plan, test::Reach::process);
    net::NicServer server{OwnedFd(3)};
    well = server.run().ok() && model.violations().empty();
  }
  // Records for tests that this process copied or had a failing call, and its result: failing call
  // (h), success (w) or error (!).
  const char* const witness = std::getenv("ORIEL_TEST_NIC_WITNESS");
  if (witness != nullptr && (model.copies() > 0 || plan.hit())) {
    const int fd = ::open(witness, O_WRONLY | O_APPEND | O_CLOEXEC);
    const char* const letter = plan.hit() ? "h" : well ? "w" : "!";
    if (fd < 0 || ::write(fd, letter, 1) != 1) return 1;
  }
  return well ? 0 : 1;
}

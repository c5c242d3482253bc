// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-nic over the model of the driver, for tests; a thread has its streams run by and by.
#include <chrono>
#include <cstdlib>
#include <stop_token>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "net/nic_server_cuda.hpp"
#include "support/fake_cuda.hpp"

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
  net::NicServer server{OwnedFd(3)};
  const bool well = server.run().ok() && model.violations().empty();
  // For tests that want to know whether there was one, and how it fared.
  const char* const witness = std::getenv("ORIEL_TEST_NIC_WITNESS");
  if (witness != nullptr && model.copies() > 0) {
    const int fd = ::open(witness, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || ::write(fd, well ? "w" : "!", 1) != 1) return 1;
  }
  return well ? 0 : 1;
}

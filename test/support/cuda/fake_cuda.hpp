// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Models the CUDA driver in this process, so that code that calls the driver runs without a GPU.
/// It has devices, primary contexts, reserved addresses, plain allocations and streams. Memory of
/// cuMemCreate is a memfd, which can be exported to other processes that run the model. A stream's
/// copies run when the stream is queried or synchronised, or when the test runs them. The host can
/// access "GPU memory" only once cuMemSetAccess has been called.
///
/// The model is strict. A call that the real driver would refuse or leave undefined fails, and so
/// does a call that would break another thread's stream capture. Misuse is noted in violations().
/// Use one at a time; in force as the process's CudaTable until destroyed. Thread-safe.
class FakeCuda {
 public:
  struct Options {
    int devices = 1;
    std::size_t memory_bytes = std::size_t{8} << 30;  ///< told per device; limits all together
    std::size_t granularity = std::size_t{2} << 20;
    int multiprocessors = 16;
    bool fabric = false;           ///< the devices support fabric handles
    bool fabric_permitted = true;  ///< the machine has the service for fabric handles
    bool peer_access = true;       ///< the devices can access each other
    int clique = 0;                ///< peer access only in groups of so many; 0: all
    /// Number of the first visible device. UUIDs and PCI addresses follow from a device's number;
    /// UUIDs also depend on `machine`.
    int first_device = 0;
    int machine = 0;
  };
  FakeCuda();
  explicit FakeCuda(Options options);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// Resources that the process has not freed.
  struct Held {
    int handle_references = 0;
    int reservations = 0;
    int mappings = 0;
    int contexts = 0;
    int buffers = 0;  ///< by cuMemAlloc, cuMemHostAlloc and cuMemHostRegister
    int streams = 0;
    int events = 0;
    std::size_t physical_bytes = 0;
    bool operator==(const Held&) const = default;
  };
  Held held() const;

  /// Returns texts that describe misuse of the driver.
  std::vector<std::string> violations() const;

  /// Starts or ends the capture, in global mode, of a stream of another thread.
  void begin_foreign_capture();
  void end_foreign_capture();

  /// Simulates a kernel that fills the devices, while `full`. Copies then run. Sets of memory,
  /// which are kernels too, and later work in their streams wait.
  void fill_devices(bool full);

  /// Runs up to `each` of the pending copies, sets and writes of each stream, in stream order.
  /// Returns the number of operations run.
  int run_streams(int each);
  /// Makes every stream fail from now on, as after a kernel's fault. Pending work then does not
  /// run, and work and queries on a stream return `status`. CUDA_SUCCESS lets streams work again.
  void fail_streams(CUresult status);

  /// Counts launches of kernels, which run nothing.
  int launches() const;
  /// Counts the copies, sets and writes that streams have run.
  int copies() const;
  /// Returns the number of contexts pushed by the calling thread.
  int context_depth() const;
  CUstreamCaptureMode capture_mode() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
  std::unique_ptr<ScopedCudaTable> scoped_;
};

std::ostream& operator<<(std::ostream& out, const FakeCuda::Held& held);

}  // namespace oriel::test

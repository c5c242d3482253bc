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

/// A small model of the CUDA driver in this process, so that what calls the driver runs without a
/// GPU: devices, primary contexts, memory of cuMemCreate over memfds (so that it can be exported to
/// other processes that run the model too), reserved addresses, plain allocations and streams whose
/// copies happen when the stream is asked for or synchronised, or the test runs them. "GPU memory"
/// can be read and written by the host once access has been set, and not before.
///
/// It is strict: a call that the real driver would refuse, leave undefined, or that would break a
/// stream capture of another thread fails and is noted in violations(). One at a time; puts itself
/// in force as the process's CudaTable while it lives. Thread-safe.
class FakeCuda {
 public:
  struct Options {
    int devices = 1;
    std::size_t memory_bytes = std::size_t{8} << 30;  ///< of each device
    std::size_t granularity = std::size_t{2} << 20;
    int multiprocessors = 16;
    bool fabric = false;           ///< the devices can do fabric handles
    bool fabric_permitted = true;  ///< and the machine has the service for them
    bool peer_access = true;       ///< the devices reach each other
    int clique = 0;                ///< and that in groups of so many; 0: all
    /// Devices have UUIDs and PCI addresses by their numbers, of which the first visible one has
    /// this, and by the machine that they are in.
    int first_device = 0;
    int machine = 0;
  };
  FakeCuda();
  explicit FakeCuda(Options options);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// What the process has not given back.
  struct Held {
    int handle_references = 0;
    int reservations = 0;
    int mappings = 0;
    int contexts = 0;
    int buffers = 0;  ///< of cuMemAlloc and cuMemHostAlloc
    int streams = 0;
    int events = 0;
    std::size_t physical_bytes = 0;
    bool operator==(const Held&) const = default;
  };
  Held held() const;

  /// What was done wrong, in words.
  std::vector<std::string> violations() const;

  /// Between these, another thread's stream is being captured in global mode.
  void begin_foreign_capture();
  void end_foreign_capture();

  /// Between true and false a kernel fills the devices: copies run, but not what sets memory, which
  /// is a kernel too, nor what stands behind it in its stream.
  void fill_devices(bool full);

  /// Runs up to so many of the copies, sets and writes that each stream has before it, in the order
  /// of the stream. How many there were.
  int run_streams(int each);
  /// Makes every stream fail from now on, as after a kernel's fault: what is before them is not
  /// run, and calls that name a stream return `status`. CUDA_SUCCESS: they work again.
  void fail_streams(CUresult status);

  /// Launches of kernels, which run nothing.
  int launches() const;
  /// Copies, sets and writes that streams have run.
  int copies() const;
  /// Of the calling thread.
  int context_depth() const;
  CUstreamCaptureMode capture_mode() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
  std::unique_ptr<ScopedCudaTable> scoped_;
};

std::ostream& operator<<(std::ostream& out, const FakeCuda::Held& held);

}  // namespace oriel::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <cuda_runtime.h>

#include "net/soft/gpu_nic_kernels.hpp"

// Every operation in every form, for each kind of group. These kernels are apart from the measured
// ones, because CMakeLists.txt compiles them with fewer optimisations to save time.
namespace oriel::net::test {
namespace {

namespace q = device::queue;
using device::Thread;
using device::Warp;
using q::QueueOutcome;

template <class Group>
__global__ void operations_kernel(OperationsJob job) {
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  std::uint32_t group = thread;
  if (std::is_same_v<Group, Warp>) group = thread / Warp::size();
  if (std::is_same_v<Group, device::Cta>) group = blockIdx.x;
  const std::uint32_t wrong = OperationsBody<Group>(job.path, group).run();
  if (Group::rank() == 0) job.wrong[group] = wrong;
}

template <class Group>
__global__ void immediates_kernel(ImmediatesJob job) {
  ImmediatesBody<Group> body(job.path);
  QueueOutcome outcome = QueueOutcome::done;
  for (std::uint32_t round = 0; round < job.rounds && outcome == QueueOutcome::done; ++round) {
    outcome = job.sends ? body.send(round) : body.receive(round);
  }
  if (Group::rank() != 0) return;
  if (job.sends && outcome == QueueOutcome::done) {
    outcome = q::wait_all(job.path.queue, job.path.control);
  }
  *job.wrong = body.wrong();
  *job.outcome = static_cast<std::uint32_t>(outcome);
}

__global__ void tickets_kernel(TicketsJob job) {
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const QueueOutcome outcome =
      draw_tickets(job.path, job.offset, job.each, job.tickets + std::size_t{thread} * job.each);
  job.outcome[thread] = static_cast<std::uint32_t>(outcome);
}

}  // namespace

int load_operations_kernels() {
  return load_kernels(operations_kernel<Thread>, operations_kernel<device::Lanes>,
                      operations_kernel<Warp>, operations_kernel<device::Cta>,
                      immediates_kernel<Thread>, immediates_kernel<Warp>,
                      immediates_kernel<device::Cta>, tickets_kernel);
}
int launch_operations(const OperationsJob& job, OperationsGroup group, void* stream) {
  const auto kernel = group == OperationsGroup::thread  ? operations_kernel<Thread>
                      : group == OperationsGroup::lanes ? operations_kernel<device::Lanes>
                      : group == OperationsGroup::warp  ? operations_kernel<Warp>
                                                        : operations_kernel<device::Cta>;
  return launch(kernel, kOperationsCtas, kOperationsThreads, job, stream);
}
int launch_immediates(const ImmediatesJob& job, OperationsGroup group, void* stream) {
  if (group == OperationsGroup::thread) return launch(immediates_kernel<Thread>, 1, 1, job, stream);
  if (group == OperationsGroup::warp) return launch(immediates_kernel<Warp>, 1, 32, job, stream);
  return launch(immediates_kernel<device::Cta>, 1, 256, job, stream);
}
int launch_tickets(const TicketsJob& job, void* stream) {
  return launch(tickets_kernel, kTicketCtas, kTicketThreads, job, stream);
}

}  // namespace oriel::net::test

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/group.hpp"
#include "oriel/device/network.hpp"

#include "kernels/algorithms/hierarchy.hpp"
#include "kernels/host/hierarchy_ops_host.hpp"
#include "kernels/loops/float_environment.hpp"
#include "kernels/plan/call_record.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {
namespace {

struct OneThread : device::Thread {
  using Lead = device::Thread;
  static bool leads() { return true; }
};

}  // namespace

bool run_hierarchy_on_host(HierarchyArguments arguments) {
  const std::uint64_t number =
      record_call(*reinterpret_cast<CallRecord*>(
                      arguments.comm.control(arguments.comm.lsa_rank, ScratchLayout::call_record)),
                  {arguments.collective, arguments.type, arguments.op, arguments.count});
  arguments.signature = numbered_signature(arguments.signature, number);
  const host::FloatEnvironment environment;
  const device::detail::Driving driving(arguments.comm.network);
  return Hierarchy<OneThread, HostHierarchyOps>(arguments).run();
}

}  // namespace oriel::kernels

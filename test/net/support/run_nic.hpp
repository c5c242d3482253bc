// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::net::test {

/// A thread that drives this NIC alone.
inline NicThread run_nic(NicSoft& nic) {
  NicThread::Options options;
  options.progress = [&nic] { return nic.progress(); };
  return NicThread::start(std::move(options)).value();
}

}  // namespace oriel::net::test

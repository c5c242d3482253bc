// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::net::test {

/// Starts a thread that drives only this NIC.
inline NicThread run_nic(NicSoft& nic) {
  NicThread::Options options;
  options.progress = [&nic] { return nic.progress(); };
  return NicThread::start(std::move(options)).value();
}

}  // namespace oriel::net::test

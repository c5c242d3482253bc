// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/signal_keeper.hpp"

#include <cstdint>
#include <vector>

#include <dlfcn.h>
#include <link.h>

namespace oriel::net {
namespace {

const void* module_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// Returns the address of the handler of either kind; null if there is none.
const void* handler_of(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    return reinterpret_cast<const void*>(action.sa_sigaction);
  }
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return nullptr;
  return reinterpret_cast<const void*>(action.sa_handler);
}

// Collects an address inside each module. Makes no calls to the loader, which holds a lock here.
int add_address(dl_phdr_info* info, std::size_t /*bytes*/, void* to) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const auto at = static_cast<std::uintptr_t>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    static_cast<std::vector<const void*>*>(to)->push_back(reinterpret_cast<const void*>(at));
    break;
  }
  return 0;
}

}  // namespace

SignalKeeper::SignalKeeper(const void* function)
    : library_(function != nullptr ? module_of(function) : nullptr) {
  std::vector<const void*> inside;
  ::dl_iterate_phdr(add_address, &inside);
  for (const void* const address : inside) modules_.insert(module_of(address));
  for (int signal = 1; signal < kSignals; ++signal) {
    const auto i = static_cast<std::size_t>(signal);
    known_[i] = ::sigaction(signal, nullptr, &before_[i]) == 0;
  }
}

bool SignalKeeper::is_foreign(const struct sigaction& now) const {
  const void* const handler = handler_of(now);
  if (handler == nullptr) return false;
  const void* const module = module_of(handler);
  return module != nullptr && (module == library_ || !modules_.contains(module));
}

SignalKeeper::~SignalKeeper() {
  for (int signal = 1; signal < kSignals; ++signal) {
    const auto i = static_cast<std::size_t>(signal);
    struct sigaction now {};
    if (!known_[i] || ::sigaction(signal, nullptr, &now) != 0) continue;
    if (handler_of(now) == handler_of(before_[i]) || !is_foreign(now)) continue;
    // Cannot fail: sigaction() has accepted the number before. The restored action is from the
    // kernel.
    static_cast<void>(::sigaction(signal, &before_[i], nullptr));
  }
}

}  // namespace oriel::net

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/spare_descriptor.hpp"

#include <mutex>

#include <sys/eventfd.h>

#include "base/system_table.hpp"

namespace oriel {
namespace {

OwnedFd any_descriptor() {
  return OwnedFd(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

struct OfProcess {
  std::mutex mutex;
  std::weak_ptr<SpareDescriptor> spare;
  int loans = 0;  // the spare stays closed while there are loans
};

OfProcess& of_process() {
  static auto* const one = new OfProcess;  // never destroyed: communicators may outlive statics
  return *one;
}

}  // namespace

std::shared_ptr<SpareDescriptor> SpareDescriptor::hold() {
  OfProcess& process = of_process();
  const std::lock_guard lock(process.mutex);
  auto spare = process.spare.lock();
  if (spare == nullptr) {
    spare = std::make_shared<SpareDescriptor>(any_descriptor());
    process.spare = spare;
  }
  if (!spare->fd_ && process.loans == 0) spare->fd_ = any_descriptor();
  return spare;
}

SpareDescriptor::Loan::Loan() {
  OfProcess& process = of_process();
  const std::lock_guard lock(process.mutex);
  lender_ = process.spare.lock();
  if (lender_ == nullptr) return;
  ++process.loans;
  lender_->fd_.reset();
}

SpareDescriptor::Loan::~Loan() {
  if (lender_ == nullptr) return;
  OfProcess& process = of_process();
  const std::lock_guard lock(process.mutex);
  if (--process.loans == 0 && !lender_->fd_) lender_->fd_ = any_descriptor();
}

}  // namespace oriel

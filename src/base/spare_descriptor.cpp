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
  int active_releases = 0;  // the spare stays closed while any Release lives
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
  if (!spare->fd_ && process.active_releases == 0) spare->fd_ = any_descriptor();
  return spare;
}

SpareDescriptor::Release::Release() {
  OfProcess& process = of_process();
  const std::lock_guard lock(process.mutex);
  spare_ = process.spare.lock();
  if (spare_ == nullptr) return;
  ++process.active_releases;
  spare_->fd_.reset();
}

SpareDescriptor::Release::~Release() {
  if (spare_ == nullptr) return;
  OfProcess& process = of_process();
  const std::lock_guard lock(process.mutex);
  if (--process.active_releases == 0 && !spare_->fd_) spare_->fd_ = any_descriptor();
}

}  // namespace oriel

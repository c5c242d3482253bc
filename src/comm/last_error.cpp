// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/last_error.hpp"

#include "base/log.hpp"

namespace oriel::comm {
namespace {

thread_local std::string last_text;
thread_local bool no_memory = false;  // came last, instead of a text
thread_local std::string held_text;

}  // namespace

void remember_error(const Error& error) {
  no_memory = false;
  last_text = std::string(to_string(error.code())) + " (" + to_string(error.scope()) +
              "): " + error.to_string();
  Log().warn("{}", last_text);
}

void remember_no_memory() noexcept {
  no_memory = true;
}

const char* last_error_text() {
  if (no_memory) return "system error (request): out of memory";
  return last_text.c_str();
}

const char* hold_text(std::string text) {
  held_text = std::move(text);
  return held_text.c_str();
}

}  // namespace oriel::comm

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "boot/auth/auth.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Neither side accepts a message that was made without the key.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = Key::random();
  const ByteView input = view(data, size);
  AuthResponse response{};
  std::copy_n(input.begin(), std::min(size, response.size()), response.begin());
  AuthResponder responder(KeyPurpose::link);
  expect(!responder.answer(response, [](std::uint64_t) { return &key; }).ok());

  AuthChallenge challenge{};
  std::copy_n(input.begin(), std::min(size, challenge.size()), challenge.begin());
  AuthInitiator initiator(KeyPurpose::link, 1, key, {});
  if (!initiator.respond(challenge).ok()) return 0;
  AuthConfirmation confirmation{};
  std::copy_n(input.begin(), std::min(size, confirmation.size()), confirmation.begin());
  expect(!initiator.confirm(confirmation).ok());
  return 0;
}

// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0

/// Lets the headers that tests share be compiled once.
int main() {
  return 0;
}

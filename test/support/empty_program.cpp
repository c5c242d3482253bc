// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0

/// Owns the headers that tests share when they are compiled once.
int main() {
  return 0;
}

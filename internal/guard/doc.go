// SPDX-License-Identifier: Apache-2.0

// Package guard has tests for the rules of the repository.
package guard

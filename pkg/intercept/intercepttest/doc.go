// SPDX-License-Identifier: Apache-2.0

// Package intercepttest contains a fake backend, [Fake], and the tests that every backend
// of pkg/intercept must pass, the fake one and those that write to a kernel.
package intercepttest

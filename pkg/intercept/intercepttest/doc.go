// SPDX-License-Identifier: Apache-2.0

// Package intercepttest contains a fake backend, [Fake]. The tests of pkg/intercept hold it, and those backends that write to a
// kernel, to one contract.
package intercepttest

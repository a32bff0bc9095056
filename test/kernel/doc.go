// SPDX-License-Identifier: Apache-2.0

// Package kernel_test runs node-cache on a kernel that has dummy links.
//
// Many machines' kernels have none, so hack/test-kernel.sh boots one that has, in an emulated machine, and runs these
// tests there.
package kernel_test

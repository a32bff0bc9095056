// SPDX-License-Identifier: Apache-2.0

// Package kernel_test runs node-cache on a kernel that has dummy links and cgroups of version 2.
//
// Many machines' kernels lack one or the other, so hack/test-kernel.sh boots one that has both, in an emulated machine, and
// runs these tests there.
package kernel_test

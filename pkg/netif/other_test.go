// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netif

import "testing"

func newKernelHarness(t *testing.T, _ Kind) *harness {
	t.Helper()
	t.Skip("links of this kernel are not supported")
	return nil
}

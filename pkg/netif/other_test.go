// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netif

import "testing"

func onKernel(t *testing.T, _ Kind) *ground {
	t.Helper()
	t.Skip("links of this kernel are not supported")
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netif

func openKernel() (kernel, error) { return nil, ErrUnsupported }

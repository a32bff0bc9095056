// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import "errors"

// selectOwn is of Linux only.
func selectOwn(int, int) error { return errors.ErrUnsupported }

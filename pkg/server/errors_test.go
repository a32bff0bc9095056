// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"syscall"
)

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func asErrno(err error, errno *syscall.Errno) bool { return errors.As(err, errno) }

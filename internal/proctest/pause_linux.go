// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"

	"golang.org/x/sys/unix"
)

// paused waits until a child is stopped or has ended: SIGSTOP alone returns while threads on other CPUs still run. On two busy
// CPUs, one of fourteen API servers answered once more. It leaves the child's status for others to collect.
func paused(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD): // its status was collected already
			return nil
		default:
			return err
		}
	}
}

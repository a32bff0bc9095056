// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pause stops a child of this process and returns once none of its threads runs. SIGSTOP alone returns while threads
// on other CPUs still run: on two busy CPUs, one of fourteen API servers answered once more. A child that has ended
// is left alone.
func Pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return paused(pid)
}

// paused waits until a child is stopped or has ended. It leaves the child's status for others to collect.
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

// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// killAll kills all processes in the hosts except this one.
func killAll(hosts []*Host) error {
	ours := map[uint64]bool{} // by inode
	for _, h := range hosts {
		var st unix.Stat_t
		h.mu.RLock()
		if h.ns.IsOpen() && unix.Fstat(int(h.ns), &st) == nil {
			ours[st.Ino] = true
		}
		h.mu.RUnlock()
	}
	if len(ours) == 0 {
		return nil
	}
	processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	for _, path := range processes {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || !ours[st.Ino] {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // a process that has ended meanwhile needs no signal
		}
	}
	return nil
}

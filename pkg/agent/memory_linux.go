// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// inMemory tells whether files in a folder take memory of this container: whether they
// are on a tmpfs. Of a folder that is not there yet its parent tells.
func inMemory(folder string) bool {
	if _, err := os.Stat(folder); err != nil {
		folder = filepath.Dir(folder)
	}
	var fs unix.Statfs_t
	return unix.Statfs(folder, &fs) != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

// readSingly has the kernel read the program's own pages one by one when they are
// needed. It may drop them when a container's memory gets scarce, and then reads ahead,
// by as much as the disk is set to: on some machines that is megabytes, which push out
// the pages that are needed next, and the process comes to a standstill without ever
// being killed. A kernel that refuses leaves it at that.
func readSingly() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if !strings.HasSuffix(strings.TrimSpace(line), " "+program) {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("reading the memory map: %w", err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_RANDOM); errno != 0 {
			return fmt.Errorf("advising the kernel: %w", errno)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// inMemory reports whether files in folder use this container's memory, because the folder is on a tmpfs. For
// a missing folder its parent decides.
func inMemory(folder string) bool {
	if _, err := os.Stat(folder); err != nil {
		folder = filepath.Dir(folder)
	}
	var fs unix.Statfs_t
	return unix.Statfs(folder, &fs) != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

// disableReadahead makes the kernel read the program's own pages one at a time.
//
// When a container's memory gets scarce, the kernel drops these pages and reads them back with the disk's
// readahead. On some hosts the readahead is megabytes. It evicts the pages needed next, and the process
// stalls without ever being killed. A kernel that refuses the advice is left as it is.
func disableReadahead() error {
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

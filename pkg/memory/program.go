// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// disableReadahead makes the kernel read the program's own pages one at a time.
//
// When a container's memory gets scarce, the kernel drops these pages and reads them back with the disk's
// readahead. On some hosts the readahead is megabytes. It evicts the pages needed next, and the process
// stalls without ever being killed. A kernel that refuses the advice is left as it is.
func disableReadahead() error { return adviseProgram(unix.MADV_RANDOM) }

// UnmapProgram unmaps the program's own pages. The kernel maps a page again when it is used.
//
// Half of the pages were used only at the start, by the initialisers of packages, or are near such ones. While they are mapped,
// they count as resident, and the kernel keeps them longer than other files when memory gets scarce.
func UnmapProgram() error { return adviseProgram(unix.MADV_DONTNEED) }

// adviseProgram gives the kernel an advice on the program's code and constants.
func adviseProgram(advice uintptr) error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	head := "" // first line of the current mapping
	for line := range strings.Lines(string(maps)) {
		changed, found := strings.CutPrefix(line, "Anonymous:")
		switch {
		case !strings.Contains(line, ":  "):
			head = strings.TrimSpace(line)
		case found && strings.TrimSpace(changed) == "0 kB" && strings.HasSuffix(head, " "+program):
			err = errors.Join(err, adviseMapping(head, advice))
		}
	}
	return err
}

// adviseMapping gives an advice on one mapping of the program, whose pages must equal the file. It skips a writable mapping:
// without its pages, variables and relocated addresses would have their initial values.
func adviseMapping(head string, advice uintptr) error {
	var from, to uintptr
	var permissions string
	if _, err := fmt.Sscanf(head, "%x-%x %s", &from, &to, &permissions); err != nil {
		return fmt.Errorf("reading the memory map: %w", err)
	}
	if strings.Contains(permissions, "w") {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, advice); errno != 0 {
		return fmt.Errorf("advising the kernel: %w", errno)
	}
	return nil
}
